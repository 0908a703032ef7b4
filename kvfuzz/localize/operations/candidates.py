"""Finds the lines that may be wrong as well as the one that is named."""

from __future__ import annotations

from collections.abc import Sequence

from kvfuzz.localize.location import Line
from kvfuzz.localize.operations.events import Event
from kvfuzz.localize.operations.open_states import FLATTENING
from kvfuzz.localize.operations.rightness import MOVES
from kvfuzz.localize.operations.traced_case import TracedCase

_MOST = 4


def find_candidates(
    traced: TracedCase, suspects: Sequence[Event], named: Line | None, owner: str
) -> tuple[Line, ...]:
    """Returns the lines that may be wrong, the `named` one first; none where it is the only one.

    `suspects` are the operations that may be to blame, the likeliest first. One that is made from
    another is its consequence. But a state that both runs have may differ rightly, if operations
    that only one has complete it; and what the first of them moves from an earlier step, or
    gives another shape, may be wrong, though a reference of the same code has it too.
    """
    if not suspects or named is None:
        return ()
    roots = _roots(traced, suspects)
    known = {event.index for event in roots}
    may_be = [event for event in suspects if event in roots or _completes(traced, event, known)]
    events = traced.recording.events
    may_be += [
        events[index]
        for index in suspects[0].inputs
        if suspects[0].operation in MOVES
        and 0 <= events[index].step < suspects[0].step
        and events[index].places
    ]
    may_be += _reshaped(traced, suspects[0])
    lines = (traced.recording.line_of(event, owner) for event in may_be)
    found = tuple(dict.fromkeys(filter(None, (named, *lines))))
    return found[:_MOST] if len(found) > 1 else ()


def _reshaped(traced: TracedCase, blamed: Event) -> list[Event]:
    """Returns what `blamed` was made from, if it only gives that another shape and both runs have
    it: its axes may be in a wrong order in both, and only mix tokens where there are several."""
    if blamed.operation not in FLATTENING or traced.comparisons.of(blamed.index) is None:
        return []
    return [traced.recording.events[index] for index in blamed.inputs]


def _roots(traced: TracedCase, suspects: Sequence[Event]) -> list[Event]:
    """Returns those of `suspects` that are not made from others of them."""
    made: set[int] = set()
    wrong = {event.index for event in suspects}
    for event in traced.recording.events[min(wrong) :]:
        if any(index in made or index in wrong for index in event.inputs):
            made.add(event.index)
    return [event for event in suspects if event.index not in made]


def _completes(traced: TracedCase, event: Event, roots: set[int]) -> bool:
    """Whether `event`, which the reference does not have, is made from a root that it has."""
    of = traced.comparisons.of
    read = [index for index in event.inputs if index in roots]
    return of(event.index) is None and any(of(index) is not None for index in read)
