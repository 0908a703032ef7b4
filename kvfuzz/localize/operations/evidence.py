"""Collects what the operations of a torch model show about the cause of a divergence."""

from __future__ import annotations

import re
from collections.abc import Sequence

import torch
from torch import Tensor

from kvfuzz.localize.causes import Facts
from kvfuzz.localize.lookalikes import WrongState, few_digits, to_table
from kvfuzz.localize.operations.align import align
from kvfuzz.localize.operations.compare_states import ComparedEvent, in_order
from kvfuzz.localize.operations.difference import abs_difference, allowed_for
from kvfuzz.localize.operations.events import ATTENDING, OUTPUT, TAPPED, Event
from kvfuzz.localize.operations.evicted import find_eviction
from kvfuzz.localize.operations.modules import block_of
from kvfuzz.localize.operations.traced_case import TracedCase
from kvfuzz.subjects.trace import Site

_NUMBER = re.compile(r"\.\d+(\.|$)")


def wrong_state(traced: TracedCase, compared: ComparedEvent) -> WrongState:
    """Returns the state that differs first and the right one, as rows, positions and features."""
    piece = compared.pieces[0]
    if piece.axis is None or piece.row is not None:
        return WrongState()
    right = compared.partner.output
    if right.dim() != piece.found.dim():
        return WrongState()
    step = compared.event.step
    others = {
        number: to_table(event.output, piece.axis, piece.rows)
        for number, event in _in_other_layers(traced, compared.partner, step).items()
    }
    return WrongState(
        to_table(piece.found, piece.axis, piece.rows),
        to_table(right, piece.axis, piece.rows),
        piece.positions,
        others,
    )


def _in_other_layers(traced: TracedCase, partner: Event, step: int) -> dict[int, Event]:
    """Returns the same operation in the other layers of the reference run, by layer number."""
    alike: dict[int, list[Event]] = {}
    key, own_number = _layer_key(traced, partner)
    for event in traced.references.own(step).run.recording.events:
        other, number = _layer_key(traced, event)
        if number is not None and other == key:
            alike.setdefault(number, []).append(event)
    own = alike.pop(own_number or 0, [])
    # A line may run several times in a layer, as for keys and then for values.
    turn = next((n for n, event in enumerate(own) if event.index == partner.index), 0)
    return {n: events[turn] for n, events in alike.items() if len(events) == len(own)}


def _layer_key(traced: TracedCase, event: Event) -> tuple[tuple[object, ...], int | None]:
    """Returns what an operation has in common with the same one in another layer, and the number of
    its own layer, None outside layers."""
    pattern, number = _layer(traced, event.module)
    return (pattern, event.operation, event.place, event.part), number


def _layer(traced: TracedCase, module: str) -> tuple[str, int | None]:
    """Returns the name of `module` without that of its layer, and the layer's number; None outside
    layers."""
    blocks = traced.recording.blocks
    block = block_of(module, blocks)
    if block is not None:
        return "*" + module[len(block) :], blocks[block]
    number = _NUMBER.search(module)
    if number is None:
        return module, None
    return _NUMBER.sub(".*.", module, count=1), int(number.group().strip("."))


def find_facts(
    traced: TracedCase,
    compared: ComparedEvent,
    blamed: Event,
    operation: tuple[str | None, str],
    place: tuple[Site, int | None],
) -> Facts:
    """Returns what else is known about the first state that differs and the operation to blame.
    `operation` is the one on the cache before it, and what proves that it is wrong; `place` is the
    site, and the window of its layer."""
    site, window = place
    piece = compared.pieces[0]
    step = next(one for one in traced.steps if one.index == blamed.step)
    sizes = traced.sizes[compared.event.step]
    before = sizes.slots - sizes.fed
    old = [position for position in _differing_positions(compared) if 0 <= position < before]
    floating = compared.event.output.is_floating_point()
    return Facts(
        operation=operation[0],
        proof=operation[1],
        operated=not step.feeds,
        earlier=bool(old) and piece.every and not piece.new,
        rotary=floating and _is_rotary(traced, compared.event),
        recurrent=floating and _recurs(traced, blamed),
        window=window,
        evicted=_name_eviction(traced, compared, blamed),
        vague=_is_vague(blamed, site),
        factor="" if blamed.index == compared.event.index else _factor(traced, blamed),
        unplaced="positions agree" not in find_evidence(traced, compared.event.step),
        uninitialised=blamed.reads_unwritten and bool(blamed.output.isnan().any()),
    )


def _factor(traced: TracedCase, blamed: Event) -> str | None:
    """Returns in words by what `blamed` multiplies the one state that it is made from; None if it
    does something else."""
    sources = [traced.recording.events[index].output for index in blamed.inputs]
    if len(sources) != 1 or sources[0].shape != blamed.output.shape:
        return None
    before, after = sources[0].double().flatten(), blamed.output.double().flatten()
    square = float(before @ before) if blamed.output.is_floating_point() else 0.0
    factor = float(after @ before) / square if square else 0.0
    exact = factor and bool(torch.allclose(after, factor * before, rtol=1e-12, atol=0.0))
    return f"it multiplies by {few_digits(factor)}" if exact else None


def _name_eviction(traced: TracedCase, compared: ComparedEvent, blamed: Event) -> str:
    """Returns in words which key `blamed` has dropped too early; empty if it has not."""
    found = find_eviction(traced, compared)
    if found is None or found.event is not blamed:
        return ""
    return f"the key of position {found.position} is gone, and position {found.query} attends to it"


_ADDING = ("add", "__iadd__", "add_", "__radd__", "sub", OUTPUT)


def _is_vague(blamed: Event, site: Site) -> bool:
    """Whether the site of `blamed` says less than a cause: only a sum is a residual connection, and
    only whole numbers are positions."""
    if site.kind in ("residual", "mlp_residual"):
        return blamed.operation not in _ADDING
    return site.kind == "position" and blamed.output.is_floating_point()


def _recurs(traced: TracedCase, event: Event) -> bool:
    """Whether the module of `event` mixes tokens through a carried state instead of attention."""
    if event.module and _layer(traced, event.module)[1] is None:
        return False
    events = traced.recording.events
    same = [e for e in events if e.module == event.module]
    return not any(e.operation in ATTENDING for e in same) and any(
        e.unseen or any(events[i].step < e.step for i in e.inputs) for e in same
    )


def _differing_positions(compared: ComparedEvent) -> list[int]:
    return [
        position
        for piece, values in zip(compared.pieces, compared.differences, strict=True)
        for position, value in zip(piece.positions, values, strict=False)
        if value > compared.allowed
    ]


def _is_rotary(traced: TracedCase, event: Event) -> bool:
    """Whether `event` is a cosine or a sine, or goes into one."""
    if event.operation in ("cos", "sin"):
        return True
    later = traced.recording.of(event.step)
    return any(e.operation in ("cos", "sin") and event.index in e.inputs for e in later)


def find_evidence(traced: TracedCase, step: int) -> tuple[str, ...]:
    """Says of the positions and the masks of `step` whether they differ or agree, and of the keys
    and values of earlier and of new tokens in the first layer where attention differs."""
    said: dict[str, bool] = {}
    events = traced.recording.of(step)
    into_states = {i for e in events if e.output.is_floating_point() for i in e.inputs}
    for event in events:
        # The tokens themselves always agree; no line of the model makes them.
        if event.output.is_floating_point() or event.index not in into_states or not event.places:
            continue
        name = "masks" if event.output.dtype == torch.bool else "positions"
        if (one := traced.comparisons.of(event.index)) is not None:
            said[name] = said.get(name, False) or one.differs
    names = ("keys and values of earlier positions", "keys and values of the new tokens")
    said |= dict(zip(names, _keys_and_values(traced, step), strict=False))
    return tuple(f"{name} {'differ' if differs else 'agree'}" for name, differs in said.items())


def _keys_and_values(traced: TracedCase, step: int) -> Sequence[bool]:
    """Returns whether those of earlier positions, and of the new tokens, differ in the first
    attention of `step` whose result differs; empty where there is none."""
    sizes = traced.sizes.get(step)
    if sizes is None:
        return ()
    attends: dict[str, int] = {}
    for event in traced.recording.of(step):
        if event.operation in ATTENDING:
            attends.setdefault(event.module, event.index)
    for event in traced.recording.of(step):
        if event.module not in attends or event.operation not in TAPPED:
            continue
        one = traced.comparisons.of(event.index)
        if one is None or len(event.taps) != len(one.partner.taps):
            continue
        if not one.differs and event.operation not in ATTENDING:
            continue
        differs = [False, False]
        for mine, theirs in zip(event.taps[1:], one.partner.taps[1:], strict=True):
            along = _token_axis(event, mine, attends[event.module])
            pieces = align(mine, theirs, one.sizes, along) if mine.is_floating_point() else None
            for piece in (in_order(p, allowed_for(theirs, 0.0)) for p in pieces or ()):
                if piece.axis is None or not piece.every or piece.new:
                    continue
                over = abs_difference(piece.found, piece.right) > allowed_for(theirs, 0.0)
                wrongs = over.movedim(piece.axis, 0).flatten(1).any(1).tolist()
                for position, wrong in zip(piece.positions, wrongs, strict=True):
                    differs[position >= sizes.slots - sizes.fed] |= wrong
        return differs
    return ()


def _token_axis(event: Event, operand: Tensor, attends: int) -> int | None:
    """Returns the axis of the tokens in the keys or values that a product takes as its `operand`;
    None for a product that may have them anywhere. `attends` is the number of the attention: before
    it the keys are transposed."""
    if event.operation == "scaled_dot_product_attention":
        return operand.dim() - 2
    if event.operation in ("matmul", "__matmul__", "bmm"):
        return operand.dim() - (1 if event.index < attends else 2)
    return None
