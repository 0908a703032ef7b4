"""From the states that differ to the operation that made the first of them.

A wrong state is made from right ones, or by an operation that the reference run does not have. So
the search goes back from the logits along what they were made from, past every state that differs
or has no counterpart, and stops at states that are right.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from kvfuzz.localize.operations.align import Frame
from kvfuzz.localize.operations.compare_states import Compared, allowed_beside, compared
from kvfuzz.localize.operations.comparisons import Comparisons, answer
from kvfuzz.localize.operations.difference import close
from kvfuzz.localize.operations.events import ATTENDING, OUTPUT, Event
from kvfuzz.localize.operations.numbers import Numbers
from kvfuzz.localize.operations.pair import key_of
from kvfuzz.localize.operations.reference_runs import Beside
from kvfuzz.localize.operations.traced_case import Inside


def first_difference(inside: Inside, last: int) -> Compared | None:
    """The earliest state that differs of those that event number `last` was made from; None if
    there is none."""
    found = inside.found
    behind = _behind(inside.recording.events, found, last)
    return _first_of(found, behind)


def first_made_from(inside: Inside, blamed: Event, last: int) -> Compared | None:
    """The earliest state that differs of those that `blamed` has gone into and `last` was made
    from: a part of a chunk may differ earlier, as it should, and what undoes that is wrong."""
    events, found = inside.recording.events, inside.found
    behind = _behind(events, found, last)
    into = {blamed.index}
    for event in events[blamed.index + 1 :]:
        if event.index in behind and into.intersection(event.inputs):
            into.add(event.index)
    return _first_of(found, into)


def _first_of(found: Comparisons, indices: set[int]) -> Compared | None:
    """The first that differs of the states of events of these `indices`."""
    there = (found.of(index) for index in sorted(indices))
    return next((one for one in there if one is not None and one.differs), None)


def last_difference(inside: Inside, step: int) -> int | None:
    """The logits of `step`, if they differ; of a step that raised the last of the events that
    differ of those that no other was made from, since that may be what it raised about."""
    events = inside.recording.of(step)
    if inside.raised and step == inside.steps[-1].index:
        used = {index for event in events for index in event.inputs}
        events = [event for event in events if event.index not in used]
    elif (logits := answer(events)) is not None:
        events = [logits]
    return next(
        (e.index for e in reversed(events) if (one := inside.found.of(e.index)) and one.differs),
        None,
    )


def culprit(inside: Inside, first: Event, last: int) -> Event:
    """The operation to blame for the `first` state that differs of those that event number `last`
    was made from: the earliest without a counterpart that is not right, of those that it was made
    from itself and of those in its step that others were; or its own."""
    whole = _unmatched_behind(inside, inside.recording.events[last])
    unknown = _unmatched_behind(inside, first) + [e for e in whole if e.step == first.step]
    own = [event for event in unknown if event.operation != OUTPUT and event.places]
    padded = first.operation in ATTENDING and not inside.frames[first.step].plain
    if padded and all(_is_in_both(inside, e) for e in own if e.index < first.index):
        return _mask_of(inside, first) or first
    return min((*own, first), key=lambda event: event.index)


def _is_in_both(inside: Inside, event: Event) -> bool:
    """Whether the reference run does the same: what it gives beside padding may not compare."""
    return any(
        key_of(event) in beside.reference.groups for beside in inside.references.of(event.step)
    )


def _mask_of(inside: Inside, attention: Event) -> Event | None:
    """The conditions of the mask of an `attention` whose operands are right at every token: then it
    sees padding, which no comparison with a run without padding can tell."""
    events = inside.recording.events
    behind, waiting = {attention.index}, [attention.index]
    while waiting:
        for source in events[waiting.pop()].inputs:
            if source not in behind and events[source].step == attention.step:
                behind.add(source)
                waiting.append(source)
    masks = [i for i in behind if events[i].output.dtype == torch.bool and events[i].places]
    return events[max(masks)] if masks else None


def _behind(events: Sequence[Event], found: Comparisons, last: int) -> set[int]:
    """The events that number `last` was made from, without going past one that is right."""
    behind, waiting = {last}, [last]
    while waiting:
        for source in events[waiting.pop()].inputs:
            if source in behind or ((one := found.of(source)) is not None and not one.differs):
                continue
            behind.add(source)
            waiting.append(source)
    return behind


def _unmatched_behind(inside: Inside, last: Event) -> list[Event]:
    """The events without a counterpart that `last` was made from, without going past one that is
    right."""
    events = inside.recording.events
    right: dict[int, bool] = {}
    behind: set[int] = set()
    waiting = [last.index]
    while waiting:
        for source in events[waiting.pop()].inputs:
            if source not in behind and not _is_right(inside, events[source], right):
                behind.add(source)
                waiting.append(source)
    return [events[index] for index in behind if inside.found.of(index) is None]


def _is_right(inside: Inside, event: Event, known: dict[int, bool]) -> bool:
    """Whether an operation without a counterpart of its own is none the less right: it holds
    nothing yet, shows what is right in another shape, or the reference run has its values somewhere
    in the same module."""
    if (one := inside.found.of(event.index)) is not None:
        return not one.differs
    if event.index not in known:
        known[event.index] = (
            _is_blank(event) or _is_there(inside, event) or _is_written(inside, event)
        )
        sources = [inside.recording.events[index] for index in event.inputs]
        if not known[event.index] and not event.unseen and _shows(event, sources):
            known[event.index] = all(_is_right(inside, source, known) for source in sources)
    return known[event.index]


# What shows its operand in another shape. A slice is not among these: it may be the wrong one.
_SHOWING = {
    "squeeze",
    "unsqueeze",
    "view",
    "reshape",
    "transpose",
    "permute",
    "expand",
    "contiguous",
    "to",
    "float",
    "double",
    "flatten",
}


def _shows(event: Event, sources: Sequence[Event]) -> bool:
    """Whether `event` is its operand in another shape; a weight, where it has no `sources`."""
    if event.operation == "__getitem__":
        return len(sources) == 1 and sources[0].output.numel() == event.output.numel()
    return event.operation in _SHOWING


# What makes new numbers: what only moves numbers may have moved them to the wrong place.
_ARITHMETIC = {"add", "sub", "mul", "div", "exp", "softplus", "silu", "sigmoid", "neg", "pow"}
_MAKING = ("zeros", "ones", "empty", "full", "new_", "tensor")


def _is_blank(event: Event) -> bool:
    """Whether nothing has been written yet: no numbers, or the same one everywhere."""
    values = event.output
    if not values.numel() or not event.operation.startswith(_MAKING):
        return not values.numel()
    return bool((values == values.flatten()[0]).all())


def _is_there(inside: Inside, event: Event) -> bool:
    """Whether a reference run has the values of `event` in the same module."""
    if not event.output.is_floating_point() or event.output.numel() < 2:
        return False
    return any(_is_held(event, beside) for beside in inside.references.of(event.step))


def _is_held(event: Event, beside: Beside) -> bool:
    """Whether the reference has the values of `event` in the same module."""
    numbers = beside.reference.numbers_in(event.module)
    if any(_same(event, other, beside.frame) for other in numbers.near(event.output.max())):
        return True
    one_token = beside.frame.plain and beside.frame.fed == 1 and event.operation in _ARITHMETIC
    return one_token and _values_within(event, numbers)


def _is_written(inside: Inside, event: Event) -> bool:
    """Whether what is written so far into a place made beforehand is what a longer run writes there
    as well, for as many tokens as there are."""
    if not event.writes or event.step not in inside.frames:
        return False
    later = inside.references.covering(event.step)
    frame, mine = inside.frames[event.step], event.output
    if later == event.step or not inside.frames[later].plain or not mine.is_floating_point():
        return False
    reference, held = inside.references.own(later).reference, mine != 0
    for other in reference.groups.get(key_of(event), ()):
        theirs = other.output
        if theirs.shape != mine.shape:
            continue
        share = int(held.sum()) * reference.length == int((theirs != 0).sum()) * frame.slots
        if share and bool(held.any()) and close(mine[held], theirs[held]):
            return True
    return False


def _same(event: Event, other: Event, frame: Frame) -> bool:
    """Whether `event` holds what `other` of the reference run does: at its own places, or at the
    last ones, as a state that is carried on does."""
    one = compared(event, other, frame, 0.0)
    if one is not None:
        return not one.differs and bool((event.output != 0).any())
    mine, theirs = event.output, other.output
    for axis, size in enumerate(theirs.shape):
        if frame.plain and size == frame.length and theirs.dim() == mine.dim():
            tail = theirs.narrow(axis, max(0, size - mine.shape[axis]), min(size, mine.shape[axis]))
            if tail.shape == mine.shape and close(mine, tail):
                return True
    return False


def _values_within(event: Event, numbers: Numbers) -> bool:
    """Whether every number of `event` is one of those that an event of the reference run holds: a
    recurrence takes one token by other operations, on other shapes, than many."""
    mine = torch.unique(event.output.detach().double())
    mine = mine[(mine != 0) & (mine != 1)]
    if mine.numel() < _FEWEST or not bool(mine.isfinite().all()):
        return False
    for other in numbers.near(mine.max()):
        if other.output.numel() < mine.numel():
            continue
        theirs = other.output.detach().double().flatten().sort().values
        above = torch.searchsorted(theirs, mine).clamp(max=theirs.numel() - 1)
        below = (above - 1).clamp(min=0)
        nearest = torch.minimum((theirs[above] - mine).abs(), (theirs[below] - mine).abs())
        if bool((nearest <= allowed_beside(other, 0.0)).all()):
            return True
    return False


# So many different numbers are not the same by chance.
_FEWEST = 4
