"""Finds the first state that differs, and the operation to blame for it.

An operation is wrong if it makes a wrong state from right ones, or if the reference run lacks it.
So the search goes back from the logits along what they were made from, past every state that
differs or has no counterpart, and stops at states that are right.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from kvfuzz.localize.operations.compare_states import (
    ComparedEvent,
)
from kvfuzz.localize.operations.comparisons import Comparisons
from kvfuzz.localize.operations.events import ATTENDING, OUTPUT, Event, find_logits
from kvfuzz.localize.operations.pair import event_key
from kvfuzz.localize.operations.rightness import MOVES, is_in_any_order, is_right
from kvfuzz.localize.operations.traced_case import TracedCase


def find_last_difference(traced: TracedCase, step: int) -> int | None:
    """Returns the event to search back from: the logits of `step`, if they differ.

    A step that raised has no logits: the last differing event from which nothing was made, since
    that may be what it raised about.
    """
    events = traced.recording.of(step)
    if traced.raised and step == traced.steps[-1].index:
        used = {index for event in events for index in event.inputs}
        events = [event for event in events if event.index not in used]
    elif (logits := find_logits(events)) is not None:
        events = [logits]
    found = traced.comparisons
    return next(
        (e.index for e in reversed(events) if (one := found.of(e.index)) and one.differs), None
    )


def find_first_difference(traced: TracedCase, last: int) -> ComparedEvent | None:
    """Returns the earliest state that differs of those that event number `last` was made from; None
    if there is none."""
    behind = _behind(traced, last)
    return _first_of(traced.comparisons, behind)


def find_first_difference_after(
    traced: TracedCase, blamed: Event, last: int
) -> ComparedEvent | None:
    """Returns the earliest state that differs of those that `blamed` went into and `last` was made
    from.

    In a chunk a state may differ earlier and rightly so, as a position counted from the start of
    the chunk does until the length of the cache is added. The operation that should undo it is the
    wrong one, and the first difference to report comes after it.
    """
    events, found = traced.recording.events, traced.comparisons
    behind = _behind(traced, last)
    into = {blamed.index}
    for event in events[blamed.index + 1 :]:
        if event.index in behind and into.intersection(event.inputs):
            into.add(event.index)
    return _first_of(found, into)


def _first_of(found: Comparisons, indices: set[int]) -> ComparedEvent | None:
    """Returns the first of the events of these `indices` that differs."""
    there = (found.of(index) for index in sorted(indices))
    return next((one for one in there if one is not None and one.differs), None)


def _behind(traced: TracedCase, last: int) -> set[int]:
    """Returns the events that number `last` was made from, without going past one that is right."""
    events = traced.recording.events
    behind, waiting = {last}, [last]
    while waiting:
        for source in events[waiting.pop()].inputs:
            if source in behind or is_right(traced, events[source]):
                continue
            behind.add(source)
            waiting.append(source)
    return behind


def find_culprits(
    traced: TracedCase, first: Event, last: int, operation: int | None = None
) -> list[Event]:
    """Returns the operations that may be to blame for `first`, the first state that differs of
    those that event number `last` was made from; the likeliest comes first. `operation` is the
    number of a step whose operation on the cache is known to be wrong: what came before is right.

    These are the operations without a counterpart that are not right, among those that `first` was
    made from, and among those in its step that `last` was made from, and the one that made `first`.
    The earliest is the likeliest, but for one that tells nothing. One of an earlier step that went
    into its logits is not among them, since these are right.
    """
    behind_last = _unmatched_behind(traced, traced.recording.events[last])
    behind_first = _unmatched_behind(traced, first)
    unmatched = behind_first + [e for e in behind_last if e.step == first.step]
    own = [event for event in unmatched if event.operation != OUTPUT and event.places]
    if operation is not None:
        if writes := [e for e in behind_first if e.step == operation and e.writes and e.places]:
            return writes[-1:]  # what it wrote into a cache last is what is read
        own = [event for event in own if event.step >= operation]
    # Padded rows are compared without their padding. If attention is the first to differ, and all
    # that it was made from is in both runs, then it must have attended to padding.
    padded = first.operation in ATTENDING and not traced.sizes[first.step].plain
    if padded and all(_is_in_both(traced, e) for e in own if e.index < first.index):
        return [_mask_of(traced, first) or first]
    found = _not_cleared(traced, [*own, first], last)
    return sorted(found, key=lambda event: (_tells_nothing(traced, event), event.index))


def _tells_nothing(traced: TracedCase, event: Event) -> bool:
    """Whether `event` is a condition that no run has to compare it with, and that an earlier step
    has as well, whose logits are right."""
    if event.output.dtype != torch.bool or traced.comparisons.of(event.index) is not None:
        return False
    key = event_key(event)
    earlier = traced.recording.events[: event.index]
    return any(e.step < event.step and event_key(e) == key for e in earlier)


def _not_cleared(traced: TracedCase, events: Sequence[Event], last: int) -> list[Event]:
    """Returns those of `events` that have not gone into the logits of a step before that of event
    number `last`, which are right; all of them where each of them has."""
    cleared: set[int] = set()
    step = traced.recording.events[last].step
    for before in {event.step for event in events if event.step < step}:
        own = traced.recording.of(before)
        logits = find_logits(own)
        waiting = [logits.index] if logits is not None else []
        while waiting:
            for source in traced.recording.events[waiting.pop()].inputs:
                if source not in cleared:
                    cleared.add(source)
                    waiting.append(source)
    return [event for event in events if event.index not in cleared] or list(events)


def _is_in_both(traced: TracedCase, event: Event) -> bool:
    """Whether a reference run has the same operation, though its result may not compare."""
    references = traced.references.for_step(event.step)
    return any(event_key(event) in reference.run.groups for reference in references)


def _mask_of(traced: TracedCase, attention: Event) -> Event | None:
    """Returns the last condition (a boolean state) that the mask of `attention` was made from."""
    events = traced.recording.events
    behind, waiting = {attention.index}, [attention.index]
    while waiting:
        for source in events[waiting.pop()].inputs:
            if source not in behind and events[source].step == attention.step:
                behind.add(source)
                waiting.append(source)
    masks = [i for i in behind if events[i].output.dtype == torch.bool and events[i].places]
    return events[max(masks)] if masks else None


def _unmatched_behind(traced: TracedCase, last: Event) -> list[Event]:
    """Returns the events without a counterpart that `last` was made from, without going past one
    that is right."""
    events = traced.recording.events
    behind: set[int] = set()
    passed: set[int] = set()
    waiting = [last.index]
    while waiting:
        number = waiting.pop()
        for source in events[number].inputs:
            if source in behind or source in passed:
                continue
            if is_right(traced, events[source]):
                # The same numbers in another order are found as well: what moved them may be wrong.
                if is_in_any_order(traced, events[source]):
                    passed.add(source)
                    waiting.append(source)
            elif number not in passed or events[source].operation in MOVES:
                behind.add(source)
                waiting.append(source)
    return [events[index] for index in behind if traced.comparisons.of(index) is None]
