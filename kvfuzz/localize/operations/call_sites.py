"""Tells whether a helper is wrong or what it was called with."""

from __future__ import annotations

from collections.abc import Sequence

from kvfuzz.localize.operations.events import Event
from kvfuzz.localize.operations.rightness import is_right
from kvfuzz.localize.operations.source_lines import SourcePlace
from kvfuzz.localize.operations.traced_case import TracedCase

# At most this many other runs of a line are looked at.
_MOST = 8


def find_faulty_call(traced: TracedCase, blamed: Event) -> SourcePlace | None:
    """Returns the line that called the helper in which `blamed` is, if the call is wrong; None if
    the helper may be.

    It is the call if `blamed` was made from right states, the same line of the helper gave right
    results for other calls, and never for this one: its arguments are swapped, or it is one call
    too many. It also is if the call has made the positions that the helper works on.
    """
    call = _call_of(blamed)
    events = traced.recording.events
    sources = [events[index] for index in blamed.inputs]
    if call is None or not all(is_right(traced, source) for source in sources):
        return None
    line = blamed.places[0], blamed.operation
    same = [e for e in events[: blamed.index] if e.places and (e.places[0], e.operation) == line]
    right = [e for e in same[-_MOST:] if is_right(traced, e)]
    calls = {_call_of(event) for event in right}
    return call if calls and (call not in calls or _made_there(traced, blamed, call)) else None


def _made_there(traced: TracedCase, blamed: Event, call: SourcePlace) -> bool:
    """Whether `blamed` works on positions that the line of the `call` has made, and that no other
    run has to compare them with."""
    events = traced.recording.events
    waiting, seen = [blamed], 0
    while waiting and seen < _MOST:
        seen += 1
        for index in waiting.pop().inputs:
            source = events[index]
            if source.place[2] == blamed.place[2]:
                waiting.append(source)
            elif source.place == call and not source.output.is_floating_point():
                return traced.comparisons.of(index) is None
    return False


def _call_of(event: Event) -> SourcePlace | None:
    """Returns the line that called the function of `event`'s own line."""
    places: Sequence[SourcePlace] = event.places
    return next((place for place in places[1:] if place[2] != places[0][2]), None)
