"""The states inside a torch model on one case: recorded, compared, and the first that differs."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from kvfuzz.case import Case, Step
from kvfuzz.compare import compare
from kvfuzz.layout import layout, places_of, text
from kvfuzz.noise import LEAST_STEP
from kvfuzz.run import CachedPathRaised, Refused, Rows, run_cached, run_uncached
from kvfuzz.subject import Subject, cache_dtype
from kvfuzz.tolerance import ROUNDOFF, constant
from kvfuzz.tracing.aligning import Frame, frame_of, is_ambiguous
from kvfuzz.tracing.comparing import MULTIPLE, Compared, allowed_for, compared, noises
from kvfuzz.tracing.pairing import grouped, key_of, paired
from kvfuzz.tracing.recording import Event, Recording, recorded
from kvfuzz.twin import perturbing, twin_of

ROUNDED = 8.0
"""How many roundoffs of a cache that rounds on purpose a state may be off, in units of its scale: a
few layers add up, and no wrong slot comes to so little."""


@dataclass
class Reference:
    """A run over the whole rows of a step, from their first token on, by another path. `again` runs
    it with weights moved by a roundoff; `noise` is what that came to, once it is asked for, and at
    least the `floor` of a cache that rounds on purpose."""

    recording: Recording
    logits: Tensor
    again: Callable[[], Recording | None]
    floor: float = 0.0
    noise: Mapping[int, float] | None = None

    @property
    def length(self) -> int:
        return self.logits.shape[1]

    def noise_of(self, event: Event) -> float:
        """The noise of `event`, relative to its scale."""
        if self.noise is None:
            moved = self.again()
            self.noise = noises(self.recording.events, moved.events) if moved else {}
        return max(self.noise.get(event.index, 0.0), self.floor)


@dataclass(frozen=True)
class Inside:
    """The cached run of a case: its events, and by index each one's comparison. `frames` and
    `references` are those of the steps that feed. `logits` are those of the run, None where the
    last step raised: `error` is what it raised then, if it did not just refuse."""

    recording: Recording
    found: Mapping[int, Compared]
    steps: tuple[Step, ...]
    frames: Mapping[int, Frame]
    references: Mapping[int, Reference]
    logits: Tensor | None = None
    error: Exception | None = None

    @property
    def raised(self) -> bool:
        return self.logits is None


def inside(subject: Subject, case: Case, operations: bool = True) -> Inside:
    """Every state of the cached path of `subject` on `case` beside the same in a run over the whole
    prefix: one call with a fresh cache where that agrees (it has the cache's own code), else the
    uncached path. Without `operations`, or where they are too many, of the modules alone.
    """
    recording, steps, logits, error = _cached(subject, case, operations)
    found: dict[int, Compared] = {}
    frames: dict[int, Frame] = {}
    references: dict[int, Reference] = {}
    known: dict[Any, Reference] = {}
    for step in steps:
        if not step.feeds:
            continue
        rows = [text(row) for row in step.after]
        length = _length(rows, step)
        frame = frame_of(places_of(step), step.size, length)
        filled = _filled(rows, length)
        one_call = bool(step.before[0]) or not frame.plain
        if (filled, one_call) not in known:
            known[filled, one_call] = _reference(subject, case, filled, one_call, operations)
        frames[step.index], references[step.index] = frame, known[filled, one_call]
    if operations and not all(one.whole for one in (recording, *_recordings(known.values()))):
        return inside(subject, case, operations=False)
    axes = _Axes(list(known.values()))
    for step in steps:
        if step.feeds:
            frame, reference = frames[step.index], references[step.index]
            found |= _compared(recording.of(step.index), reference, frame, step, axes)
            found |= _answers(recording.of(step.index), reference, frame)
    return Inside(recording, found, tuple(steps), frames, references, logits, error)


def _recordings(references: Iterable[Reference]) -> Iterator[Recording]:
    return (reference.recording for reference in references)


def inside_uncached(subject: Subject, case: Case, operations: bool = True) -> Inside:
    """Every state of one uncached run over the sequences of `case` beside the same in one call with
    a fresh cache: for a subject whose uncached path is the one to suspect."""
    rows = layout(case).sequences
    whole = replace(case, tokens=rows, schedule=(len(rows[0]),), given=())
    with recorded(subject, operations) as recording:
        recording.step = 0
        logits = run_uncached(subject, rows)
    reference = _measured(subject, lambda: run_cached(subject, whole), operations)
    if operations and not (recording.whole and reference.recording.whole):
        return inside_uncached(subject, case, operations=False)
    step = next(whole.steps())
    frame = frame_of(places_of(step), step.size, len(rows[0]))
    found = _compared(recording.events, reference, frame, step, _Axes([]))
    found |= _answers(recording.events, reference, frame)
    return Inside(recording, found, (step,), {0: frame}, {0: reference}, logits)


def _answers(events: Sequence[Event], reference: Reference, frame: Frame) -> dict[int, Compared]:
    """The logits of a step beside those of its reference."""
    mine, theirs = answer(events), answer(reference.recording.events)
    if mine is None or theirs is None:
        return {}
    one = _beside(mine, theirs, reference, frame)
    return {mine.index: one} if one is not None else {}


class _Axes:
    """Which axis of a state is that of its tokens, told by references of several lengths."""

    def __init__(self, references: Sequence[Reference]) -> None:
        self._groups = {id(one): grouped(one.recording.events) for one in references}
        self._lengths = {id(one): one.length for one in references}

    def of(self, event: Event, reference: Reference) -> int | None:
        """The axis of the tokens of an `event` of `reference`, -1 if there is none; None where that
        cannot be told."""
        if len(self._groups) < 2 or id(reference) not in self._groups:
            return None
        key = key_of(event)
        own = self._groups[id(reference)][key]
        turn = next(n for n, one in enumerate(own) if one.index == event.index)
        shapes = {
            self._lengths[number]: groups[key][turn].output.shape
            for number, groups in self._groups.items()
            if len(groups.get(key, [])) == len(own)
        }
        if len(shapes) < 2 or len({len(shape) for shape in shapes.values()}) > 1:
            return None
        axes = range(event.output.dim())
        fits = (a for a in axes if all(shape[a] == length for length, shape in shapes.items()))
        return next(fits, -1)


def _beside(
    event: Event, partner: Event, reference: Reference, frame: Frame, axes: _Axes | None = None
) -> Compared | None:
    """`event` beside its `partner`, judged by the noise of that if it must be: that takes a run of
    its own, which a clean case can do without."""
    along = None
    if axes is not None and is_ambiguous(event.output.shape, partner.output.shape, frame):
        along = axes.of(partner, reference)
    one = compared(event, partner, frame, 0.0, along)
    if one is None or not one.differs or not event.output.is_floating_point():
        return one
    return replace(one, allowed=allowed_for(partner.output, reference.noise_of(partner)))


def answer(events: Sequence[Event]) -> Event | None:
    """The logits of a call, as `kvfuzz.run` copies them outside all modules."""
    copies = (e for e in reversed(events) if e.operation == "clone" and not e.module)
    return next((e for e in copies if e.output.is_floating_point()), None)


def _compared(
    events: Sequence[Event],
    reference: Reference,
    frame: Frame,
    step: Step,
    axes: _Axes,
) -> dict[int, Compared]:
    """What is compared of the `events` of `step` with `reference`."""
    start = len(text(step.before[0])) if step.before else 0
    pairs = paired(events, reference.recording.events, step.size, start, reference.length)
    fresh = _made_of_tokens(events)
    found = {}
    for event in events:
        partner = pairs.get(event.index)
        if partner is None:
            continue
        one = _beside(event, partner, reference, frame, axes)
        # A state as it was before the call is another in a run that begins with the first token.
        if one is not None and (one.pieces[0].positions or event.index in fresh or not start):
            found[event.index] = one
    return found


def _made_of_tokens(events: Sequence[Event]) -> set[int]:
    """The events that something the call was given has gone into: tokens, mask or positions, as
    `kvfuzz.run` makes them."""
    fresh: set[int] = set()
    for event in events:
        if not event.places or fresh.intersection(event.inputs):
            fresh.add(event.index)
    return fresh


def _cached(
    subject: Subject, case: Case, operations: bool
) -> tuple[Recording, list[Step], Tensor | None, Exception | None]:
    """The cached run of `case` and its logits, up to the step that raised, if one did, with the
    error."""
    steps: list[Step] = []
    with recorded(subject, operations) as recording:

        def begin(step: Step) -> None:
            steps.append(step)
            recording.step = step.index

        try:
            logits = run_cached(subject, case, begin=begin)
        except CachedPathRaised as raised:
            return recording, steps, None, raised.error
        except Refused:
            return recording, steps, None, None
    return recording, steps, logits, None


def _reference(
    subject: Subject, case: Case, rows: Rows, one_call: bool, operations: bool
) -> Reference:
    """A run over `rows`: in one call with a cache if asked for, and if that agrees with the
    uncached path; else uncached."""
    whole = Case(
        tuple(map(tuple, rows)), (len(rows[0]),), case.seed, case.dtype, case.config, case.given
    )
    if one_call:
        with suppress(CachedPathRaised, Refused):
            cached = _measured(subject, lambda: run_cached(subject, whole), operations)
            if agree(cached.logits, run_uncached(subject, rows), subject):
                return cached
    return _measured(subject, lambda: run_uncached(subject, rows), operations)


def _measured(subject: Subject, run: Callable[[], Tensor], operations: bool) -> Reference:
    """A recorded run, whose noise can be measured."""

    def again() -> Recording | None:
        twin = twin_of(subject)
        if not twin.weights or not (twin.always or _in_double(twin.weights)):
            return None
        with twin.running(promoting=False), perturbing(twin.weights) as perturb:
            perturb(LEAST_STEP, 0)
            return _run(subject, run, operations)[0]

    recording, logits = _run(subject, run, operations)
    rounds_to = cache_dtype(subject)
    floor = ROUNDED * ROUNDOFF[rounds_to] / MULTIPLE if rounds_to is not None else 0.0
    return Reference(recording, logits, again, floor)


def _in_double(weights: Sequence[Tensor]) -> bool:
    return all(weight.dtype == torch.float64 for weight in weights)


def _run(subject: Subject, run: Callable[[], Tensor], operations: bool) -> tuple[Recording, Tensor]:
    with recorded(subject, operations) as recording:
        recording.step = 0
        logits = run()
    return recording, logits


def agree(found: Tensor, right: Tensor, subject: Subject) -> bool:
    """Whether two runs gave the same logits, but for rounding."""
    tolerance = constant(right, getattr(subject, "width", None), right.dtype)
    return not bool(compare(found, right, tolerance).diverges.any())


def _length(rows: Sequence[Sequence[int]], step: Step) -> int:
    """How many tokens a reference takes: those of the rows where these are alike, else some more,
    so that an axis of its tokens has a size of its own."""
    longest = max(map(len, rows))
    if all(len(row) == len(step.after[0]) for row in rows):
        return longest
    length = longest + 1
    while length in (step.size, len(step.after[0]), len(rows)):
        length += 1
    return length


def _filled(rows: Sequence[tuple[int, ...]], length: int) -> tuple[tuple[int, ...], ...]:
    """`rows` filled up on the right, which a causal path does not see."""
    return tuple(row + row[-1:] * (length - len(row)) for row in rows)
