"""Finds the write that dropped keys from a cache which are still attended to.

A ring or a window holds fewer tokens than the reference run. That is right as long as no new token
attends to one that is gone: a chunk may overwrite what its own first tokens still need.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from kvfuzz.localize.operations.align import align
from kvfuzz.localize.operations.compare_states import ComparedEvent
from kvfuzz.localize.operations.events import Event
from kvfuzz.localize.operations.traced_case import TracedCase

_FUSED = "scaled_dot_product_attention"


@dataclass(frozen=True)
class Eviction:
    """The operation `event` after which the key of `position` was gone, while the token at `query`
    still attends to it."""

    event: Event
    position: int
    query: int


def find_eviction(traced: TracedCase, first: ComparedEvent) -> Eviction | None:
    """Returns the eviction that explains why the attention `first` differs; None if its keys hold
    all that its tokens attend to, or cannot be matched with those of the reference."""
    found = first if first.event.operation == _FUSED else _attention_of(traced, first)
    if found is None or not found.sizes.plain:
        return None
    first, event, partner = found, found.event, found.partner
    if min(len(event.taps), len(partner.taps)) < 3:
        return None
    pieces = align(event.taps[1], partner.taps[1], first.sizes)
    if not pieces or not (pieces[0].last is not None or _is_short(event, first)):
        return None
    (group,) = first.sizes.groups
    seen, held = _seen(partner, first.sizes.length), set(pieces[0].positions)
    for query in group.new_positions:
        for position in range(query + 1):
            if bool(seen[query, position]) and position not in held:
                dropped = _write_behind(traced, event)
                return Eviction(dropped, position, query) if dropped else None
    return None


def _attention_of(traced: TracedCase, first: ComparedEvent) -> ComparedEvent | None:
    """Returns the attention to the keys or values `first`, if these are those of a ring as long as
    the call: its slots look like those of the new tokens, in a wrong order."""
    made = {first.event.index}
    for event in traced.recording.of(first.event.step):
        if made.intersection(event.inputs):
            made.add(event.index)
            if event.operation == _FUSED and len(event.taps) > 1:
                one = traced.comparisons.of(event.index)
                return one if one is not None and _is_short(event, one) else None
    return None


def _is_short(event: Event, first: ComparedEvent) -> bool:
    """Whether there are as many keys as new tokens, though there were others before: a ring as long
    as the call."""
    sizes = first.sizes
    return event.taps[1].shape[-2] == sizes.fed < sizes.slots


def _seen(attention: Event, length: int) -> Tensor:
    """Returns which position each token of the reference attends to, [length, length]: in any row
    and head."""
    causal = torch.ones(length, length, dtype=torch.bool).tril()
    mask = next((tap for tap in attention.taps[3:] if tap.shape[-2:] == causal.shape), None)
    if mask is None:
        return causal
    allowed = mask if mask.dtype == torch.bool else mask > -torch.inf
    return causal & allowed.reshape(-1, length, length).any(0).to(causal.device)


def _write_behind(traced: TracedCase, event: Event) -> Event | None:
    """Returns the first operation of the step of `event` that wrote into the memory of what `event`
    read, or else cut it, without going past the states that both runs have and that are right."""
    events = traced.recording.events
    behind, waiting = set[int](), [event.index]
    while waiting:
        for source in events[waiting.pop()].inputs:
            if source not in behind and events[source].step == event.step:
                behind.add(source)
                waiting.append(source)
    found = [events[index] for index in sorted(behind) if events[index].places]
    floating = [one for one in found if one.output.is_floating_point()]
    held = [one for one in floating if traced.comparisons.of(one.index) is None]
    writes = [one for one in held if one.writes]
    cuts = [one for one in held if one.operation == "__getitem__"]
    return next(iter([*writes, *cuts]), None)
