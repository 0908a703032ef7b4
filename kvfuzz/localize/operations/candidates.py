"""Finds the lines that may be wrong as well as the one that is named."""

from __future__ import annotations

from collections.abc import Sequence

from kvfuzz.localize.location import Line
from kvfuzz.localize.operations.compare_states import ComparedEvent
from kvfuzz.localize.operations.events import OUTPUT, Event
from kvfuzz.localize.operations.open_states import FLATTENING
from kvfuzz.localize.operations.pair import event_key
from kvfuzz.localize.operations.rightness import MOVES, is_right
from kvfuzz.localize.operations.traced_case import TracedCase
from kvfuzz.localize.operations.unwritten import MOVING

_MOST = 4
# How far back is looked.
_FEW = 24


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
    may_be += _doubtful(traced, suspects[0])
    may_be += _partial(traced, suspects[0])
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


def _doubtful(traced: TracedCase, blamed: Event) -> list[Event]:
    """Returns what `blamed` was made from without a counterpart, if it counts as right by few
    values alone: what it was made from in turn is not right."""
    events, found = traced.recording.events, list[Event]()
    waiting, seen = [blamed], {blamed.index}
    while waiting and len(seen) < _FEW:
        for index in waiting.pop().inputs:
            source = events[index]
            alone = source.step == blamed.step and traced.comparisons.of(index) is None
            if index not in seen and alone and is_right(traced, source):
                seen.add(index)
                if not any(_is_wrong_alone(traced, events[one]) for one in source.inputs):
                    waiting.append(source)
                elif _tells_little(traced, source):
                    found.append(source)
    return found


def _tells_little(traced: TracedCase, event: Event) -> bool:
    """Whether the values of `event` may be found in the reference by chance: it has none, or one
    all over, or lacks the axis of the new tokens."""
    values, sizes = event.output, traced.sizes.get(event.step)
    if not values.is_floating_point() or sizes is None:
        return False
    alike = not values.numel() or bool((values == values.flatten()[0]).all())
    return alike or (sizes.fed > 1 and sizes.fed not in values.shape)


def _is_wrong_alone(traced: TracedCase, event: Event) -> bool:
    """Whether `event` is not right and has no counterpart. One that has may differ rightly, as a
    sum over the tokens of the call does until the rest is added."""
    return traced.comparisons.of(event.index) is None and not is_right(traced, event)


def _partial(traced: TracedCase, blamed: Event) -> list[Event]:
    """Returns what else may be wrong where `blamed` sums over the tokens of its call alone, though
    there were others before: what it sums, and what should add the rest to it."""
    sizes, one = traced.sizes.get(blamed.step), traced.comparisons.of(blamed.index)
    if sizes is None or one is None or sizes.fed == sizes.slots:
        return []
    events, found = traced.recording.events, list[Event]()
    for index in blamed.inputs:
        source = traced.comparisons.of(index)
        axes = _new_axes(source) if source and source.event.step == blamed.step else 0
        if axes > 1 or (axes and not _new_axes(one)):
            found.append(events[index])
    later = traced.recording.of(blamed.step) if found else []
    made = {blamed.index}
    for event in later:
        if made.intersection(event.inputs):
            if event.place != blamed.place and event.operation != OUTPUT:
                return [*found, event]
            made.add(event.index)
    return found


def _new_axes(one: ComparedEvent) -> int:
    """Returns how many axes of a state are as long as the call, and those of its reference as
    long as the whole."""
    shapes = zip(one.event.output.shape, one.partner.output.shape, strict=False)
    return sum((mine, other) == (one.sizes.fed, one.sizes.length) for mine, other in shapes)


def find_stale(traced: TracedCase, blamed: Event) -> Event | None:
    """Returns the operation of the step of `blamed` whose result of an earlier step `blamed` has
    read, though the step had computed it anew; None if there is none."""
    events = traced.recording.events
    if blamed.writes or blamed.operation in MOVING:
        return None  # a cache joins what it has kept
    old = [events[i] for i in blamed.inputs if events[i].step < blamed.step and events[i].places]
    for event in traced.recording.of(blamed.step) if len(old) == 1 else ():
        if event.index >= blamed.index:
            break
        anew = event_key(event) == event_key(old[0]) and event.operation != OUTPUT
        if anew and event.index not in blamed.inputs:
            return event
    return None


def _completes(traced: TracedCase, event: Event, roots: set[int]) -> bool:
    """Whether `event`, which the reference does not have, is made from a root that it has."""
    of, events = traced.comparisons.of, traced.recording.events
    waiting, read = [event], list[int]()
    while waiting:
        for index in waiting.pop().inputs:
            if index in roots:
                read.append(index)
            elif events[index].operation in MOVES and min(roots) < index:
                waiting.append(events[index])
    return of(event.index) is None and any(of(index) is not None for index in read)
