"""Compares the states of a recorded run with those of its references, each when it is asked for."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from math import inf

from kvfuzz.case.case import Step
from kvfuzz.case.layout import real_tokens
from kvfuzz.localize.operations.align import is_ambiguous
from kvfuzz.localize.operations.compare_states import (
    ComparedEvent,
    allowed_difference,
    compare_events,
)
from kvfuzz.localize.operations.events import TAPPED, Event, Recording, find_logits
from kvfuzz.localize.operations.pair import (
    EventGroups,
    Pairs,
    event_key,
    group_events,
    pair_events,
)
from kvfuzz.localize.operations.reference_runs import ReferenceRuns, StepReference

_CUMULATIVE = ("cumsum", "cumprod", "logcumsumexp", "cummax", "cummin")


class Comparisons(Mapping[int, ComparedEvent]):
    """The comparison of each event with its counterpart, by the event's index; events without a
    counterpart are missing. Iterating compares all events."""

    def __init__(
        self, recording: Recording, references: ReferenceRuns, steps: Sequence[Step]
    ) -> None:
        self._recording, self._references = recording, references
        self._calls = {s.index: _call(recording.of(s.index), s) for s in steps if s.feeds}
        self._known: dict[int, ComparedEvent | None] = {}
        self._pairs: dict[tuple[int, int], Pairs] = {}
        self._partial: set[int] = set()
        self._same: dict[tuple[int, int, int, int | None], ComparedEvent | None] = {}

    def of(self, index: int) -> ComparedEvent | None:
        """Returns the comparison of event number `index`, None if it has no counterpart."""
        if index not in self._known:
            self._known[index] = self._compare(self._recording.events[index])
        return self._known[index]

    def __getitem__(self, index: int) -> ComparedEvent:
        found = self.of(index)
        if found is None:
            raise KeyError(index)
        return found

    def __iter__(self) -> Iterator[int]:
        return (e.index for e in self._recording.events if self.of(e.index) is not None)

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def partner_of(self, index: int) -> Event | None:
        """Returns the counterpart of event number `index` in the own reference of its step, whether
        or not the two can be compared; None if it has none."""
        event = self._recording.events[index]
        if event.step not in self._calls:
            return None
        return self._partner(event, self._references.own(event.step))

    def was_compared(self, index: int) -> bool:
        """Whether an event has been asked for already."""
        return index in self._known

    def _compare(self, event: Event) -> ComparedEvent | None:
        """Compares `event` with each reference of its step until one agrees; else the comparison
        with the last, the step's own, counts."""
        call = self._calls.get(event.step)
        if call is None:
            return None
        if event.index == call.logits:
            return self._compare_logits(event)
        for reference in self._references.for_step(event.step):
            partner = self._partner(event, reference)
            if partner is None and event_key(event) not in reference.run.groups:
                return None  # its line does not run there, however many tokens there are
            one = None
            if partner is not None:
                one = self._compare_with(event, partner, reference)
            if one is not None and not one.differs:
                return self._unless_short(one) or self._unless_older(one)
        return None if one is None else self._unless_older(_allow_noise(one, reference))

    def _compare_with(
        self, event: Event, partner: Event, reference: StepReference
    ) -> ComparedEvent | None:
        """Compares `event` with its `partner`; once for an operation and the module whose result it
        is, which have one output."""
        along = self._token_axis(event, partner, reference)
        mine, theirs = event.same or event, partner.same or partner
        outputs = mine.index, theirs.index, id(reference.run), along
        if outputs not in self._same:
            self._same[outputs] = compare_events(event, partner, reference.sizes, 0.0, along)
        one = self._same[outputs]
        if one is None or (one.event is event and one.partner is partner):
            return one
        return replace(one, event=event, partner=partner)

    def _compare_logits(self, event: Event) -> ComparedEvent | None:
        """Compares the logits of a step with those of its own reference."""
        reference = self._references.own(event.step)
        partner = find_logits(reference.run.recording.events)
        if partner is None or event.output.dim() < 2:
            return None
        sizes = reference.sizes.of_last(event.output.shape[1])  # a call may return the last ones
        one = compare_events(event, partner, sizes, 0.0)
        return None if one is None else _allow_noise(one, reference)

    def _partner(self, event: Event, reference: StepReference) -> Event | None:
        key = event.step, id(reference.run)
        if key not in self._pairs:
            call, sizes = self._calls[event.step], reference.sizes
            self._pairs[key] = pair_events(
                call.groups, reference.run.groups, sizes.fed, call.start, sizes.length
            )
        return self._pairs[key].get(event.index)

    def _unless_older(self, one: ComparedEvent) -> ComparedEvent | None:
        """Returns `one`, or None if it is a state as it was before the call, or one made of the
        tokens of the call alone, without positions: the reference begins with the first token, so
        its own are others."""
        call, index = self._calls[one.event.step], one.event.index
        summed = one.event.operation in _CUMULATIVE and index not in call.carried
        if not call.start or (one.pieces[0].positions and not summed):
            return one
        if index in call.fresh and (index in call.carried or not one.differs):
            return one
        if index in call.fresh:
            self._partial.add(index)
        return None

    def _unless_short(self, one: ComparedEvent) -> ComparedEvent | None:
        """Returns a comparison that differs for scores with the keys of the call alone, which
        agree with a part of their counterpart; None for other states."""
        sizes, shape = one.sizes, one.event.output.shape
        keys = [
            mine
            for mine, other in zip(shape, one.partner.output.shape, strict=False)
            if other == sizes.length and mine == sizes.fed
        ]
        attends = one.event.index in self._calls[one.event.step].scores
        if not attends or len(keys) != 2 or not sizes.plain or sizes.fed == sizes.slots:
            return None
        differences = tuple((inf,) * len(values) for values in one.differences)
        missing = f"holds {sizes.fed} of the {sizes.slots} positions due"
        return replace(one, differences=differences, largest=inf, missing=missing)

    def is_partial(self, index: int) -> bool:
        """Whether event number `index` is a sum or the like over the tokens of its call alone,
        which the reference takes over all tokens."""
        return self.of(index) is None and index in self._partial

    def _token_axis(self, event: Event, partner: Event, reference: StepReference) -> int | None:
        """Returns the axis of the tokens of `event` where its shape alone does not tell, -1 if it
        has none; None where nothing tells.

        The other steps of the case do: the axis is as long as their chunk in each of them, or as
        long as their cache in each of them.
        """
        all_sizes = self._references.sizes
        if not is_ambiguous(event.output.shape, partner.output.shape, reference.sizes):
            return None
        own = self._calls[event.step].groups[event_key(event)]
        turn = next(n for n, one in enumerate(own) if one.index == event.index)
        shapes = {}
        for step, call in self._calls.items():
            same = call.groups.get(event_key(event), ())
            if len(same) == len(own):
                shapes[step] = tuple(same[turn].output.shape)
        if (
            len({all_sizes[step].slots for step in shapes}) < 2
            or len(set(map(len, shapes.values()))) > 1
        ):
            return None
        # Past the first call no axis holds new tokens: the reference would have more of them.
        first = reference.sizes.fed == reference.sizes.slots
        for axis in range(event.output.dim()):
            lengths = [(shape[axis], all_sizes[step]) for step, shape in shapes.items()]
            if first and all(length == sizes.fed for length, sizes in lengths):
                return axis
            if all(length == sizes.slots for length, sizes in lengths):
                return axis
        return -1


@dataclass(frozen=True)
class _Call:
    """What is known of the events of one step: how many tokens the first row had before it, the
    index of its logits, the `fresh` events, made from what the call was given (tokens, mask or
    positions), the `carried` ones, made from what earlier calls have left, and the `scores`, which
    a softmax is taken of, with their softmax."""

    groups: EventGroups
    start: int
    logits: int
    fresh: frozenset[int]
    carried: frozenset[int]
    scores: frozenset[int]


def _scores_in(events: Sequence[Event]) -> frozenset[int]:
    """Returns the softmaxes of `events`, and what they are taken of back to a product."""
    known = {event.index: event for event in events}
    found: dict[int, bool] = {}

    def is_score(event: Event) -> bool:
        """Whether `event` is a product, or made from one."""
        if event.index not in found:
            sources = [known[index] for index in event.inputs if index in known]
            alike = [one for one in sources if one.output.dim() == event.output.dim()]
            # Each is looked at: more than one may be made from a product.
            found[event.index] = event.operation in TAPPED or any(list(map(is_score, alike)))
        return found[event.index]

    for event in events:
        if event.operation == "softmax":
            is_score(event)
    return frozenset(index for index, score in found.items() if score)


def _call(events: Sequence[Event], step: Step) -> _Call:
    fresh, carried = set[int](), set[int]()
    begin = events[0].index if events else 0
    for event in events:
        before = event.places and any(index < begin for index in event.inputs)
        if event.unseen or before or not carried.isdisjoint(event.inputs):
            carried.add(event.index)
        # `kvfuzz.subjects.run` makes the inputs of the call, and its lines are never named.
        if not event.places or not fresh.isdisjoint(event.inputs):
            fresh.add(event.index)
    logits = find_logits(events)
    start = len(real_tokens(step.before[0])) if step.before else 0
    return _Call(
        group_events(events),
        start,
        logits.index if logits else -1,
        frozenset(fresh),
        frozenset(carried),
        _scores_in(events),
    )


def _allow_noise(one: ComparedEvent, reference: StepReference) -> ComparedEvent:
    """Returns `one` with the measured noise of its counterpart allowed. Measuring takes another
    run, so it is done only for a state that differs by more than any noise-free one may."""
    if not one.differs or not one.event.output.is_floating_point():
        return one
    noise = reference.run.noise_of(one.partner)
    return replace(one, allowed=allowed_difference(one.partner, noise))
