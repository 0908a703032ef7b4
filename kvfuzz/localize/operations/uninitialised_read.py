"""Finds the operation that read memory which nothing had been written to."""

from __future__ import annotations

from kvfuzz.localize.operations.events import Event
from kvfuzz.localize.operations.traced_case import TracedCase


def find_uninitialised_read(traced: TracedCase, last: int) -> Event | None:
    """Returns the first operation that computed NaN from memory that nothing had written to, and
    whose NaN went into event number `last`; None if there is none.

    `kvfuzz.subjects.uninitialised` fills such memory with NaN in every cached run.
    """
    events = traced.recording.events
    behind, waiting = {last}, [last]
    while waiting:
        for source in events[waiting.pop()].inputs:
            if source not in behind and _holds_nan(events[source]):
                behind.add(source)
                waiting.append(source)
    reads = (events[index] for index in sorted(behind) if events[index].reads_unwritten)
    return next((one for one in reads if one.places and _holds_nan(one)), None)


def _holds_nan(event: Event) -> bool:
    return event.output.is_floating_point() and bool(event.output.isnan().any())
