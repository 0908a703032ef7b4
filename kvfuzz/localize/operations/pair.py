"""Pair the events of two runs: the same operation, on the same line, in the same module call."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence

from kvfuzz.localize.operations.events import Event

Pairs = dict[int, Event]
"""The partner of an examined event, by its index."""
Key = tuple[object, ...]
"""What an event has in common with the same one in another run."""
Groups = Mapping[Key, Sequence[Event]]


def paired(examined: Groups, reference: Groups, fed: int, start: int, length: int) -> Pairs:
    """The partner among the `reference` events (a run over `length` tokens from the first) of each
    `examined` one (of a call with `fed` tokens from position `start` on), both `grouped`.

    Where one line runs once for each token (a recurrence written as a loop) the examined round i is
    the reference's round `start` + i.
    """
    found: Pairs = {}
    for key, mine in examined.items():
        theirs = reference.get(key, ())
        if len(theirs) == len(mine):
            found |= {event.index: other for event, other in zip(mine, theirs, strict=True)}
        elif per_token := _rounds(len(mine), len(theirs), fed, start, length):
            skipped = start * per_token
            found |= {event.index: theirs[skipped + number] for number, event in enumerate(mine)}
    return found


def same_in(events: Sequence[Event], again: Sequence[Event]) -> Pairs:
    """The partner of each of `events` in the same run done `again`, which may lack some: a weight
    that has its dtype already is not converted. None have any if it does anything else besides."""
    found: Pairs = {}
    waiting = list(reversed(again))
    for event in events:
        if waiting and _is_same(event, waiting[-1]):
            found[event.index] = waiting.pop()
    return {} if waiting else found


def _is_same(event: Event, other: Event) -> bool:
    return event.operation == other.operation and event.output.shape == other.output.shape


def grouped(events: Sequence[Event]) -> Groups:
    """The events of each operation of each line of each module, in order, over all its calls."""
    groups: dict[Key, list[Event]] = defaultdict(list)
    for event in events:
        groups[key_of(event)].append(event)
    return dict(groups)


def key_of(event: Event) -> Key:
    """What an event has in common with the same one in another run."""
    return event.module, event.place, event.operation, event.part


def _rounds(mine: int, theirs: int, fed: int, start: int, length: int) -> int:
    """How often a line runs for each token, where it does and all of them are in the reference;
    else 0. (What is fed with padding has more slots than the reference may have tokens.)"""
    if mine % fed or theirs % length or fed == length or start + fed > length:
        return 0
    return mine // fed if mine // fed == theirs // length else 0
