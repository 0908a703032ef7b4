"""The states of a recorded run beside those of its references, compared when they are asked for."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from kvfuzz.case.case import Step
from kvfuzz.case.layout import text
from kvfuzz.localize.operations.align import is_ambiguous
from kvfuzz.localize.operations.compare_states import Compared, allowed_beside, compared
from kvfuzz.localize.operations.events import Event, Recording
from kvfuzz.localize.operations.pair import Groups, Pairs, grouped, key_of, paired
from kvfuzz.localize.operations.reference_runs import Beside, References


def answer(events: Sequence[Event]) -> Event | None:
    """The logits of a call, as `kvfuzz.subjects.run` copies them outside all modules."""
    copies = (e for e in reversed(events) if e.operation == "clone" and not e.module)
    return next((e for e in copies if e.output.is_floating_point()), None)


class Comparisons(Mapping[int, Compared]):
    """The comparison of each event with its counterpart, by its index; what has none is not there.

    To go through all of them compares all.
    """

    def __init__(self, recording: Recording, references: References, steps: Sequence[Step]) -> None:
        self._recording, self._references = recording, references
        self._calls = {s.index: _call(recording.of(s.index), s) for s in steps if s.feeds}
        self._known: dict[int, Compared | None] = {}
        self._pairs: dict[tuple[int, int], Pairs] = {}
        self._same: dict[tuple[int, int, int, int | None], Compared | None] = {}

    def of(self, index: int) -> Compared | None:
        """The comparison of event number `index`, None if it has no counterpart."""
        if index not in self._known:
            self._known[index] = self._compared(self._recording.events[index])
        return self._known[index]

    def __getitem__(self, index: int) -> Compared:
        found = self.of(index)
        if found is None:
            raise KeyError(index)
        return found

    def __iter__(self) -> Iterator[int]:
        return (e.index for e in self._recording.events if self.of(e.index) is not None)

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def looked_at(self, index: int) -> bool:
        """Whether an event was asked for already."""
        return index in self._known

    def _compared(self, event: Event) -> Compared | None:
        """Right if it agrees with any reference of its step; else beside its own."""
        call = self._calls.get(event.step)
        if call is None:
            return None
        if event.index == call.answer:
            return self._answer(event)
        for beside in self._references.of(event.step):
            partner = self._partner(event, beside)
            if partner is None and key_of(event) not in beside.reference.groups:
                return None  # its line does not run there, of however many tokens
            one = None
            if partner is not None:
                one = self._beside(event, partner, beside)
            if one is not None and not one.differs:
                return self._counted(one)
        return None if one is None else self._counted(_allowed(one, beside))

    def _beside(self, event: Event, partner: Event, beside: Beside) -> Compared | None:
        """`event` beside its `partner`: one comparison for an operation and for the module whose
        result it gives, which have one output."""
        along = self._along(event, partner, beside)
        mine, theirs = event.same or event, partner.same or partner
        outputs = mine.index, theirs.index, id(beside.reference), along
        if outputs not in self._same:
            self._same[outputs] = compared(event, partner, beside.frame, 0.0, along)
        one = self._same[outputs]
        return one and replace(one, event=event, partner=partner)

    def _answer(self, event: Event) -> Compared | None:
        """The logits of a step beside those of its own reference."""
        beside = self._references.own(event.step)
        partner = answer(beside.reference.recording.events)
        one = compared(event, partner, beside.frame, 0.0) if partner is not None else None
        return None if one is None else _allowed(one, beside)

    def _partner(self, event: Event, beside: Beside) -> Event | None:
        key = event.step, id(beside.reference)
        if key not in self._pairs:
            call, frame = self._calls[event.step], beside.frame
            self._pairs[key] = paired(
                call.groups, beside.reference.groups, frame.fed, call.start, frame.length
            )
        return self._pairs[key].get(event.index)

    def _counted(self, one: Compared) -> Compared | None:
        """`one`, unless it is a state as it was before the call: that is another in a run that
        begins with the first token."""
        call = self._calls[one.event.step]
        if one.pieces[0].positions or not call.start or one.event.index in call.fresh:
            return one
        return None

    def _along(self, event: Event, partner: Event, beside: Beside) -> int | None:
        """The axis of the tokens of `event`, where its shape alone does not tell, -1 if there is
        none: as long in every step as that has new tokens, or all. None where that cannot be
        told."""
        frames = self._references.frames
        if not is_ambiguous(event.output.shape, partner.output.shape, beside.frame):
            return None
        own = self._calls[event.step].groups[key_of(event)]
        turn = next(n for n, one in enumerate(own) if one.index == event.index)
        shapes = {}
        for step, call in self._calls.items():
            same = call.groups.get(key_of(event), ())
            if len(same) == len(own):
                shapes[step] = tuple(same[turn].output.shape)
        if (
            len({frames[step].slots for step in shapes}) < 2
            or len(set(map(len, shapes.values()))) > 1
        ):
            return None
        for axis in range(event.output.dim()):
            sizes = [(shape[axis], frames[step]) for step, shape in shapes.items()]
            if all(size == frame.fed for size, frame in sizes):
                return axis
            if all(size == frame.slots for size, frame in sizes):
                return axis
        return -1


@dataclass(frozen=True)
class _Call:
    """What is known of the events of one step: how many tokens came before it in the first row, the
    index of its logits, and `fresh`, what something the call was given has gone into: tokens, mask
    or positions, as `kvfuzz.subjects.run` makes them."""

    groups: Groups
    start: int
    answer: int
    fresh: frozenset[int]


def _call(events: Sequence[Event], step: Step) -> _Call:
    fresh: set[int] = set()
    for event in events:
        if not event.places or not fresh.isdisjoint(event.inputs):
            fresh.add(event.index)
    logits = answer(events)
    start = len(text(step.before[0])) if step.before else 0
    return _Call(grouped(events), start, logits.index if logits else -1, frozenset(fresh))


def _allowed(one: Compared, beside: Beside) -> Compared:
    """`one`, judged by the noise of its counterpart if it must be: that takes a run of its own,
    which a clean case can do without."""
    if not one.differs or not one.event.output.is_floating_point():
        return one
    noise = beside.reference.noise_of(one.partner)
    return replace(one, allowed=allowed_beside(one.partner, noise))
