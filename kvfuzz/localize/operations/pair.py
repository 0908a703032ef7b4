"""Pairs the events of two runs: the same operation, on the same line, in the same module."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence

from kvfuzz.localize.operations.events import Event

Pairs = dict[int, Event]
"""The partner of an examined event, by its index."""
EventKey = tuple[object, ...]
"""What an event has in common with the same one in another run."""
EventGroups = Mapping[EventKey, Sequence[Event]]
"""The events of each key, in order."""


def pair_events(
    examined: EventGroups, reference: EventGroups, fed: int, start: int, length: int
) -> Pairs:
    """Returns the partner of each `examined` event (of a call with `fed` tokens from position
    `start` on) among the `reference` events (of a run over `length` tokens from the first).

    Where a line runs once for each token, as in a recurrence written as a loop, round i of the
    examined call is round `start` + i of the reference.
    """
    found: Pairs = {}
    for key, mine in examined.items():
        theirs = reference.get(key, ())
        if len(theirs) == len(mine):
            found |= {event.index: other for event, other in zip(mine, theirs, strict=True)}
        elif per_token := _rounds_per_token(len(mine), len(theirs), fed, start, length):
            skipped = start * per_token
            found |= {event.index: theirs[skipped + number] for number, event in enumerate(mine)}
    return found


def pair_reruns(events: Sequence[Event], again: Sequence[Event]) -> Pairs:
    """Returns the partner of each of `events` in a rerun with float64 weights.

    The rerun may lack some events: a weight that has its dtype already is not converted. If it did
    anything else, it is not the same run, and nothing is paired.
    """
    found: Pairs = {}
    waiting = list(reversed(again))
    for event in events:
        if waiting and _is_same(event, waiting[-1]):
            found[event.index] = waiting.pop()
    return {} if waiting else found


def _is_same(event: Event, other: Event) -> bool:
    return event.operation == other.operation and event.output.shape == other.output.shape


def group_events(events: Sequence[Event]) -> EventGroups:
    """Groups events by operation, line and module, in order, over all calls of the module."""
    groups: dict[EventKey, list[Event]] = defaultdict(list)
    for event in events:
        groups[event_key(event)].append(event)
    return dict(groups)


def event_key(event: Event) -> EventKey:
    """Returns what an event has in common with the same one in another run."""
    return event.module, event.place, event.operation, event.part


def _rounds_per_token(mine: int, theirs: int, fed: int, start: int, length: int) -> int:
    """Returns how often a line runs for each token; 0 where it does not run once or more for every
    token of both runs. (A padded call may feed more slots than the reference has tokens.)"""
    if mine % fed or theirs % length or fed == length or start + fed > length:
        return 0
    return mine // fed if mine // fed == theirs // length else 0
