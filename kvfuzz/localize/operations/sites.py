"""Finds the site of each state of a torch model from where it is computed.

Layers are the entries of the outermost numbered list of modules that does most of the work; in a
model that numbers none, sibling modules of one class that do more than half of it. Within a layer
the softmax or the fused kernel of attention separates what comes before it from what comes after. A
layer without one mixes tokens in its first module that does not normalise.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch

from kvfuzz.localize.operations.align import AxisSizes
from kvfuzz.localize.operations.compare_states import ComparedEvent
from kvfuzz.localize.operations.events import ATTENDING, OUTPUT, TAPPED, Event, find_logits
from kvfuzz.localize.operations.modules import block_of
from kvfuzz.subjects.trace import Site


@dataclass(frozen=True, slots=True)
class _Layer:
    """The parts of a layer, by the index of an event: `mixer` is the module that mixes tokens,
    `attends` the event that does (None for a recurrence), `scores` the product of queries and keys
    before it, and `mixed` the last event of the mixer. `only_mixes` says that it has no residual
    connection of its own."""

    name: str
    number: int
    mixer: str
    attends: int | None
    mixed: int
    scores: int
    only_mixes: bool = False


class Sites:
    """The sites of the states of one step; `events` are all of the step's."""

    def __init__(
        self,
        events: Sequence[Event],
        norms: set[str],
        sizes: AxisSizes,
        blocks: Mapping[str, int] | None = None,
    ) -> None:
        self._events, self._norms = events, norms
        self._stack = _find_stack(events, blocks or {})
        self._layers = _find_layers(events, self._stack, norms)
        self._begin, self._end = _span(events, self._stack)
        self._masks = _made_for_masks(events, self._begin, _owner(events, self._stack), sizes)

    def of(self, event: Event, one: ComparedEvent | None) -> Site:
        """Returns the site of `event`; `one` is its comparison, if it has any."""
        if not self._layers:
            return _site_without_layers(event, self._events, one)
        layer = self._stack.layer_of(event.module)
        if layer is not None:
            number = layer[1]
            return Site(_kind(event, self._layers[number], self._norms, one), number)
        if event.index > self._end:
            return Site("final_norm" if event.module in self._norms else "logits")
        if self._is_carried(event) and (reader := self.reader_of(event.index)) is not None:
            return Site("cache", reader)
        if event.index < self._begin:
            return Site("attention", 0) if event.index in self._masks else Site("position")
        return self._site_between(event)

    def reader_of(self, index: int) -> int | None:
        """Returns the first layer that reads what event number `index` made, itself or by way of
        others; None if no layer does."""
        into = {index}
        for event in self._events:
            if into.intersection(event.inputs):
                into.add(event.index)
                if (layer := self._stack.layer_of(event.module)) is not None:
                    return layer[1]
        return None

    def _is_carried(self, event: Event) -> bool:
        """Whether a state is read from what an earlier step has left."""
        floating = event.output.is_floating_point()
        return floating and any(0 <= index < self._events[0].index for index in event.inputs)

    def _site_between(self, event: Event) -> Site:
        """Returns the site of `event` in the code between two layers: it belongs to the first."""
        before = (e for e in reversed(self._events) if e.index < event.index)
        inside = (self._stack.layer_of(e.module) for e in before)
        number = next(layer[1] for layer in inside if layer is not None)
        if event.module in self._norms:
            return Site("mlp_norm", number)
        if event.module != _owner(self._events, self._stack):
            return Site("mlp", number)
        if not event.output.is_floating_point():
            return Site("attention", number)
        return Site("residual" if self._layers[number].only_mixes else "mlp_residual", number)


def _site_without_layers(event: Event, events: Sequence[Event], one: ComparedEvent | None) -> Site:
    """Returns the site of `event` in code without layers, which counts as a single layer."""
    if not event.output.is_floating_point():
        return Site("position")
    if event is find_logits(events):
        return Site("logits")
    attends = next((e.index for e in events if e.operation in ATTENDING), None)
    if attends is not None and event.index >= attends:
        return Site("attention", 0)
    carried = (
        event.unseen
        or any(index < events[0].index for index in event.inputs)
        or (one is not None and one.pieces[0].every and not one.pieces[0].new)
    )
    return Site("cache" if carried else "kv", 0)


def owner_of(events: Sequence[Event], blocks: Mapping[str, int]) -> str:
    """Returns the name of the module that holds the layers; `blocks` are these where they have no
    numbers."""
    return _owner(events, _find_stack(events, blocks))


class _Stack:
    """The layers of a model, held by the module `owner`: numbered after a `prefix` (which ends with
    a dot unless it is empty), or the named `blocks`."""

    def __init__(self, owner: str, prefix: str, blocks: Mapping[str, int]) -> None:
        self.owner, self._prefix, self._blocks = owner, prefix, blocks
        self._known: dict[str, tuple[str, int] | None] = {}

    def layer_of(self, module: str) -> tuple[str, int] | None:
        """Returns the name and the number of the layer that `module` is in, None outside layers."""
        if module not in self._known:  # asked for every operation, of a few modules
            self._known[module] = self._find_layer(module)
        return self._known[module]

    def _find_layer(self, module: str) -> tuple[str, int] | None:
        if self._blocks:
            block = block_of(module, self._blocks)
            return None if block is None else (block, self._blocks[block])
        number = module[len(self._prefix) :].split(".", 1)[0]
        inside = module.startswith(self._prefix) and number.isdigit()
        return (self._prefix + number, int(number)) if inside else None


def _find_stack(events: Sequence[Event], blocks: Mapping[str, int]) -> _Stack:
    """Returns the `blocks` as the stack if more than half of the operations are in them, else the
    numbered list of modules in which most are."""
    within = sum(1 for event in events if blocks and block_of(event.module, blocks) is not None)
    if 2 * within > len(events):
        holder = next(iter(blocks)).rpartition(".")[0]
        # A ModuleDict is never called: then the module around it owns the layers.
        called = any(event.module == holder for event in events)
        return _Stack(holder if called else holder.rpartition(".")[0], "", blocks)
    counts: Counter[str] = Counter()
    for module, count in Counter(event.module for event in events).items():
        parts = module.split(".")
        first = next((n for n, part in enumerate(parts) if part.isdigit()), None)
        if first is not None:
            counts[".".join(parts[:first]) + "." if first else ""] += count
    # No module name starts with a NUL: without a numbered list nothing is in the stack.
    prefix = counts.most_common(1)[0][0] if counts else "\0"
    return _Stack(prefix.rstrip(".").rpartition(".")[0], prefix, {})


def _owner(events: Sequence[Event], stack: _Stack) -> str:
    # The model itself has no name; its events are recorded under a placeholder in angle brackets.
    return stack.owner or next((e.module for e in events if e.module.startswith("<")), "")


def _find_layers(events: Sequence[Event], stack: _Stack, norms: set[str]) -> dict[int, _Layer]:
    inside: dict[tuple[str, int], list[Event]] = {}
    for event in events:
        layer = stack.layer_of(event.module)
        if layer is not None:
            inside.setdefault(layer, []).append(event)
    return {number: _layer(name, number, own, norms) for (name, number), own in inside.items()}


def _layer(name: str, number: int, events: Sequence[Event], norms: set[str]) -> _Layer:
    attends = next((e for e in events if e.operation in ATTENDING), None)
    if attends is not None:
        mixer = attends.module
    else:
        others = (e.module for e in events if e.module != name and e.module not in norms)
        mixer = next((".".join(m.split(".")[: len(name.split(".")) + 1]) for m in others), name)
    mixed = max((e.index for e in events if _within(e.module, mixer)), default=-1)
    alone = attends is not None and attends.module == name and not _adds(events, attends.index)
    if mixer == name and not alone:
        mixed = attends.index if attends is not None else -1
    if attends is None:
        return _Layer(name, number, mixer, None, mixed, -1)
    scores = _find_scores(attends, events)
    return _Layer(name, number, mixer, attends.index, mixed, scores, only_mixes=alone)


def _adds(events: Sequence[Event], after: int) -> bool:
    """Whether one of `events` after number `after` adds, as a residual connection does."""
    return any(e.index > after and e.operation in ("add", "__iadd__", "add_") for e in events)


def _find_scores(attends: Event, events: Sequence[Event]) -> int:
    """Returns the product that the softmax is taken of, or the fused kernel itself."""
    known = {event.index: event for event in events}
    waiting, found = [attends.index], []
    while waiting and attends.operation == "softmax":
        for source in known[waiting.pop()].inputs:
            if source in known and known[source].operation in TAPPED:
                found.append(source)
            elif source in known:
                waiting.append(source)
    return max(found, default=attends.index)


def _within(module: str, outer: str) -> bool:
    return module == outer or module.startswith(outer + ".")


def _span(events: Sequence[Event], stack: _Stack) -> tuple[int, int]:
    """Returns the first and the last event inside layers."""
    inside = [event.index for event in events if stack.layer_of(event.module) is not None]
    return (inside[0], inside[-1]) if inside else (events[-1].index + 1, events[-1].index + 1)


def _made_for_masks(events: Sequence[Event], begin: int, owner: str, sizes: AxisSizes) -> set[int]:
    """Returns those of the events before the first layer from which nothing but masks is made: they
    are in the module that holds the layers."""
    before = [event for event in events if event.index < begin]
    read_after = {index for event in events if event.index >= begin for index in event.inputs}
    into_masks: set[int] = set()
    others: set[int] = set()
    for event in reversed(before):
        no_mask = event.module != owner or (
            event.output.is_floating_point() and not _may_be_mask(event, sizes)
        )
        kind = event.output.dtype
        numbers = not kind.is_floating_point and kind != torch.bool and event.output.dim() < 3
        no_mask = no_mask or (numbers and event.index in read_after)
        # The square of a chunk is no mask yet, and becomes part of one.
        part = event.module == owner and event.index in into_masks - read_after
        if event.index in others or (no_mask and not part):
            others |= {event.index, *event.inputs}
        else:
            into_masks.update(event.inputs)
    return {event.index for event in before} - others


def _may_be_mask(event: Event, sizes: AxisSizes) -> bool:
    """Whether the shape can be that of an additive mask: rows, heads, new tokens and slots, or only
    the last of these."""
    shape = event.output.shape
    if len(shape) < 2:
        return shape == (sizes.slots,)
    return len(shape) > 3 or (shape[-1] == sizes.slots and shape[-2] in (sizes.fed, 1))


def _kind(event: Event, layer: _Layer, norms: set[str], one: ComparedEvent | None) -> str:
    inner = _within(event.module, layer.mixer) and event.index <= layer.mixed
    # Where the layer itself mixes, its norm is inside the mixer.
    if inner and layer.mixer == layer.name and event.module in norms:
        return "norm"
    if inner and not (event.module == layer.name and event.index > layer.mixed):
        return _kind_of_mixing(event, layer, one)
    if event.index <= layer.mixed or layer.mixed < 0:
        return "norm" if event.module in norms or event.module == layer.name else "attention"
    if event.module in norms:
        return "mlp_norm"
    if event.module != layer.name:
        return "mlp"
    return "mlp_residual" if event.operation == OUTPUT else "residual"


def _kind_of_mixing(event: Event, layer: _Layer, one: ComparedEvent | None) -> str:
    if layer.attends is not None and event.index >= layer.scores:
        return "attention"
    if not event.output.is_floating_point() and event.output.dim() > 2:
        return "attention"
    if event.writes:
        return "cache"
    if one is not None and one.pieces[0].positions:
        return "cache" if one.pieces[0].every else "kv"
    return "cache" if event.unseen or layer.attends is None else "kv"
