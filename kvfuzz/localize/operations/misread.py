"""Finds an operation that reads another state than its counterpart in the reference run does.

A wrong variable, swapped arguments and a statement that is left out change no number before they
are read: all states are right, and the first wrong one is made of the wrong ones of them.
"""

from __future__ import annotations

import linecache
from collections.abc import Sequence

from kvfuzz.localize.operations.events import OUTPUT, Event
from kvfuzz.localize.operations.pair import event_key
from kvfuzz.localize.operations.rightness import MOVES, is_right
from kvfuzz.localize.operations.traced_case import TracedCase

# Views and copies hand a state on: which of them an operation reads makes no difference.
_FEW = 24


def find_left_out(traced: TracedCase, blamed: Event) -> Event | None:
    """Returns the operation of the reference run that `blamed` should have read the result of, and
    that its own step has left out; None if there is no such operation.

    It is one of the model's code, made from what `blamed` has read in its place.
    """
    partner = traced.comparisons.partner_of(blamed.index)
    if partner is None or blamed.operation == OUTPUT or len(blamed.inputs) > _FEW:
        return None
    events = traced.recording.events
    sources = [events[index] for index in blamed.inputs]
    if not all(is_right(traced, source) for source in sources):
        return None
    run = traced.references.own(blamed.step).run
    read = {one.index for source in sources if (one := _partner(traced, source)) is not None}
    theirs = [run.recording.events[index] for index in partner.inputs]
    ran = {event_key(event) for event in traced.recording.of(blamed.step)}
    for missing in theirs:
        alone = missing.index not in read and event_key(missing) not in ran
        if alone and missing.places and read.intersection(_behind(run.recording.events, missing)):
            return missing
    return None


def find_misread(traced: TracedCase, blamed: Event) -> Event | None:
    """Returns the operation behind `blamed` that the reference does not have, such as a write into
    a cache, if it reads another right state than what the counterpart of `blamed` is made from;
    None if there is none."""
    partner = traced.comparisons.partner_of(blamed.index)
    events = traced.recording.events
    if partner is None or not all(is_right(traced, events[index]) for index in blamed.inputs):
        return None
    readers = _readers(traced, blamed)
    run = traced.references.own(blamed.step).run.recording
    ours = {_counterpart(traced, index): reader for index, reader in readers.items()}
    own = {_index(one) for e in traced.recording.of(blamed.step) if (one := _partner(traced, e))}
    theirs = _first_behind(run.events, partner, own)
    wrong = [reader for index, reader in ours.items() if index not in theirs]
    first = min(wrong, key=lambda reader: reader.index, default=blamed)
    moves = first.writes or first.operation in MOVES
    if not theirs - set(ours) or not moves or first.index == blamed.index:
        return None
    return None if _is_read_rightly(traced, first, blamed) else first


def _readers(traced: TracedCase, blamed: Event) -> dict[int, Event]:
    """Returns the nearest states behind `blamed` that are compared, by their numbers, each with
    what reads it: `blamed`, or an operation behind it that has no counterpart."""
    events, found = traced.recording.events, dict[int, Event]()
    waiting, seen = [blamed], {blamed.index}
    while waiting and len(seen) < _FEW:
        event = waiting.pop()
        for index in event.inputs:
            if events[index].step == blamed.step and traced.comparisons.of(index) is not None:
                found.setdefault(index, event)
            elif index not in seen and events[index].step == blamed.step:
                seen.add(index)
                waiting.append(events[index])
    return found


def _first_behind(events: Sequence[Event], event: Event, stops: set[int]) -> set[int]:
    """Returns the nearest events behind `event` whose numbers are among `stops`."""
    found, waiting, seen = set[int](), [event], {event.index}
    while waiting and len(seen) < _FEW:
        for index in waiting.pop().inputs:
            if _index(events[index]) in stops:
                found.add(_index(events[index]))
            elif index not in seen:
                seen.add(index)
                waiting.append(events[index])
    return found


def _is_read_rightly(traced: TracedCase, read: Event, blamed: Event) -> bool:
    """Whether what `read` made also goes into a state that is right, other than by `blamed`."""
    made = {read.index}
    for event in traced.recording.of(blamed.step):
        if event.index != blamed.index and made.intersection(event.inputs):
            one = traced.comparisons.of(event.index)
            if one is not None and event.operation != OUTPUT:
                return not one.differs
            made.add(event.index)
    return False


def _counterpart(traced: TracedCase, index: int) -> int:
    found = _partner(traced, traced.recording.events[index])
    return -1 if found is None else _index(found)


def _index(event: Event) -> int:
    return (event.same or event).index


def is_in_deeper_block(event: Event, other: Event) -> bool:
    """Whether the line of `event` is in a block of the function of `other`, such as that of a
    condition, that the line of `other` is not in."""
    mine, theirs = event.place, other.place
    texts = (linecache.getline(filename, number) for filename, number, _ in (mine, theirs))
    depths = [len(text) - len(text.lstrip()) for text in texts]
    return (mine[0], mine[2]) == (theirs[0], theirs[2]) and depths[0] > depths[1]


def _partner(traced: TracedCase, event: Event) -> Event | None:
    found = traced.comparisons.partner_of(event.index)
    return found.same or found if found is not None else None


def _behind(events: Sequence[Event], event: Event) -> set[int]:
    """Returns what `event` was made from, by way of at most a few operations on its own line."""
    found: set[int] = set()
    waiting = [event.index]
    while waiting and len(found) < _FEW:
        for index in events[waiting.pop()].inputs:
            found.add(index)
            if events[index].place == event.place:
                waiting.append(index)
    return found
