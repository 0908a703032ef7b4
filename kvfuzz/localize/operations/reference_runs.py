"""The reference runs of a case: whole rows, run by another path, that its steps are compared with.

Read from the top: the values of a run, one run with its noise, and the runs of all steps, each run
only when it is asked for.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cached_property

import torch
from torch import Tensor

from kvfuzz.case.case import Case, Step
from kvfuzz.case.layout import real_tokens, slot_positions
from kvfuzz.localize.operations.align import AxisSizes, axis_sizes
from kvfuzz.localize.operations.compare_states import allowed_difference, noise_between
from kvfuzz.localize.operations.difference import MULTIPLE, is_close
from kvfuzz.localize.operations.events import Event, Recording
from kvfuzz.localize.operations.pair import EventGroups, group_events, pair_reruns
from kvfuzz.localize.operations.record import Detail, WatchedSubject, record
from kvfuzz.oracle.compare import compare
from kvfuzz.oracle.noise import LEAST_STEP
from kvfuzz.oracle.tolerance import constant
from kvfuzz.subjects.call_limits import call_limits_of
from kvfuzz.subjects.dtypes import ROUNDOFF
from kvfuzz.subjects.float64 import twin_of
from kvfuzz.subjects.perturb import perturbing
from kvfuzz.subjects.protocol import Subject, cache_dtype
from kvfuzz.subjects.run import CachedPathRaised, Refused, run_cached, run_uncached

ROUNDED = 8.0
"""How many roundoffs of a cache that rounds on purpose a state may be off, relative to its scale.
The rounding of a few layers adds up to less, and a wrong slot is off by far more."""

_TokenRows = tuple[tuple[int, ...], ...]
_Shape = tuple[int, ...]


class ValueIndex:
    """The values of floating-point `events` that have one shape."""

    def __init__(self) -> None:
        self.events: list[Event] = []

    @cached_property
    def _ranges(self) -> tuple[Tensor, Tensor]:
        """The least and the largest value of each event, less and more how far it may be off: both
        [events], put together when they are asked for."""
        ends = [torch.stack(event.output.aminmax()).double() for event in self.events]
        off = [(-off, off) for off in (allowed_difference(event, 0.0) for event in self.events)]
        least, most = (torch.stack(ends) + torch.tensor(off, device=ends[0].device)).unbind(1)
        return least, most

    def find(self, value: Tensor) -> list[Event]:
        """Returns the events that hold `value` [], up to rounding, and those that hold NaN."""
        least, most = self._ranges
        # Most events are too small or too large throughout, which is cheap to tell.
        near = ((value < least) | (value > most)).logical_not_().nonzero()[:, 0].tolist()
        return [event for event in map(self.events.__getitem__, near) if _holds(event, value)]


def _holds(event: Event, value: Tensor) -> bool:
    apart = (event.output.double() - value).abs_()
    return not bool((apart > allowed_difference(event, 0.0)).all())


def index_values(events: Iterable[Event]) -> dict[_Shape, ValueIndex]:
    """Indexes the values of those of `events` that are floating-point, by their shape."""
    found: dict[_Shape, ValueIndex] = defaultdict(ValueIndex)
    for event in events:
        if event.output.is_floating_point() and event.output.numel():
            found[tuple(event.output.shape)].events.append(event)
    return dict(found)


@dataclass
class ReferenceRun:
    """A run over the whole rows of a step, from their first token on, by another path.

    `rerun` repeats it with weights moved by a roundoff, to measure the noise of its states; None
    where that is impossible. The noise is at least `floor`, for a cache that rounds on purpose.
    """

    recording: Recording
    logits: Tensor
    rerun: Callable[[], Recording | None]
    floor: float = 0.0
    _values: dict[str, dict[_Shape, ValueIndex]] = field(default_factory=dict, repr=False)
    _noises: dict[int, float] = field(default_factory=dict, repr=False)

    @property
    def length(self) -> int:
        return self.logits.shape[1]

    @cached_property
    def groups(self) -> EventGroups:
        """The events by what they have in common with those of another run."""
        return group_events(self.recording.events)

    @cached_property
    def _moved(self) -> Mapping[int, Event]:
        """The same events in the run with other weights, by index."""
        moved = self.rerun()
        return {} if moved is None else pair_reruns(self.recording.events, moved.events)

    def values_in(self, module: str) -> Mapping[_Shape, ValueIndex]:
        """Returns the values of all operations of one `module`, by their shape."""
        if module not in self._values:
            own = (e for e in self.recording.events if e.module == module)
            self._values[module] = index_values(own)
        return self._values[module]

    @cached_property
    def every_value(self) -> Mapping[_Shape, ValueIndex]:
        """The values of all operations, by their shape."""
        return index_values(self.recording.events)

    def noise_of(self, event: Event) -> float:
        """Returns the noise of `event`, relative to its scale."""
        event = event.same or event
        if event.index not in self._noises:
            moved = self._moved.get(event.index)
            noise = noise_between(event, moved) if moved is not None else 0.0
            self._noises[event.index] = max(noise, self.floor)
        return self._noises[event.index]


def run_reference(
    subject: Subject, run: Callable[[], Tensor], watched: WatchedSubject, operations: bool
) -> ReferenceRun:
    """Records `run`, in such a way that its noise can be measured later."""

    def recorded_run(detail: Detail) -> tuple[Recording, Tensor]:
        with record(watched, operations, detail) as recording:
            recording.step = 0
            logits = run()
        return recording, logits

    def rerun() -> Recording | None:
        twin = twin_of(subject)
        # A float32 weight moved by a roundoff of float64 would not move at all.
        if not twin.weights or not (twin.always or _in_double(twin.weights)):
            return None
        with twin.running(promoting=False), perturbing(twin.weights, twin.values) as perturb:
            perturb(LEAST_STEP, 0)
            return recorded_run(Detail.NUMBERS)[0]

    rounds_to = cache_dtype(subject)
    floor = ROUNDED * ROUNDOFF[rounds_to] / MULTIPLE if rounds_to is not None else 0.0
    return ReferenceRun(*recorded_run(Detail.LINES), rerun, floor)


def _in_double(weights: Sequence[Tensor]) -> bool:
    return all(weight.dtype == torch.float64 for weight in weights)


@dataclass(frozen=True)
class UncachedRun:
    """The `logits` of an uncached run over `rows` that was not recorded; `for_prefixes` says that
    they also are those of a run over any prefix of the rows."""

    rows: _TokenRows
    logits: Tensor
    for_prefixes: bool


@dataclass(frozen=True)
class StepReference:
    """A reference run for one step, and the sizes that align the two."""

    run: ReferenceRun
    sizes: AxisSizes


class ReferenceRuns:
    """The reference of each step that feeds tokens, run when it is asked for.

    By the contract a step is compared with a run over the prefix that it ends: its own reference.
    The run of a later step whose rows continue that prefix nearly always begins with the same
    states. So a step is compared with that run first: a state that agrees is right, and only the
    others need a run over their own prefix.
    """

    def __init__(
        self,
        subject: Subject,
        case: Case,
        steps: Sequence[Step],
        watched: WatchedSubject,
        operations: bool,
    ) -> None:
        self._subject, self._case, self._watched = subject, case, watched
        self._operations = operations
        self._steps = {step.index: step for step in steps if step.feeds}
        self._texts = {
            n: tuple(real_tokens(row) for row in step.after) for n, step in self._steps.items()
        }
        self._known: dict[tuple[_TokenRows, bool], ReferenceRun] = {}
        self._own: dict[int, StepReference] = {}
        self._uncached_logits: dict[_TokenRows, Tensor] = {}
        self._valid_for_prefixes: _TokenRows | None = None
        self._covering: dict[int, int] = {}
        self._sizes: dict[tuple[int, int], AxisSizes] = {}
        self._last = max(self._steps, default=0)
        self.sizes = {
            n: self._sizes_of(n, _length(self._texts[n], step)) for n, step in self._steps.items()
        }
        self._keys = {n: self._key(n) for n in self._steps}

    def stop_at(self, step: int | None) -> None:
        """Declares `step`, if it is not None, the last one that will be asked for."""
        if step is not None and step != self._last:
            self._last = step
            self._covering.clear()

    def kept_operations(self) -> bool:
        """Whether the operations of the largest reference, and so of all, fit in memory."""
        sizes = {n: one for n, one in self.sizes.items() if n <= self._last}
        if not sizes:
            return True
        tokens = {n: one.length * one.rows for n, one in sizes.items()}
        largest = max(tokens, key=lambda n: (tokens[n], n))
        return self.own(largest).run.recording.whole

    def set_uncached(self, run: UncachedRun) -> None:
        """Sets the logits of an uncached `run`, so that it is not run again."""
        self._uncached_logits[run.rows] = run.logits
        self._valid_for_prefixes = run.rows if run.for_prefixes else None

    def set_own(self, step: int, run: ReferenceRun) -> None:
        """Sets the own reference of `step`, and takes its logits for the right ones."""
        self._known[self._keys[step]] = run
        self._uncached_logits[self._rows(step)] = run.logits

    def own(self, step: int) -> StepReference:
        """Returns the run over the prefix that `step` ends: in one call with a fresh cache if its
        logits agree with the uncached path (it then runs the cache's own code), else uncached."""
        if step not in self._own:
            key = self._keys[step]
            if key not in self._known:
                self._known[key] = self._run(*key)
            self._own[step] = StepReference(self._known[key], self.sizes[step])
        return self._own[step]

    def for_step(self, step: int) -> Iterator[StepReference]:
        """Yields the references of `step`, the cheapest first and its own last; none if it feeds
        nothing."""
        if step not in self._steps:
            return
        later = self.covering(step)
        if later != step and self._keys[step] not in self._known:
            run = self.own(later).run
            yield StepReference(run, self._sizes_of(step, run.length))
        yield self.own(step)

    def covering(self, step: int) -> int:
        """Returns the last step whose rows continue those of `step`; itself if there is none."""
        if step not in self._covering:
            self._covering[step] = self._find_covering(step)
        return self._covering[step]

    def matches_uncached(self, step: int, logits: Tensor) -> bool:
        """Whether the `logits` [rows, fed, vocab] of `step` are those of an uncached run over the
        prefix that it ends, with less than any noise between them."""
        whole, mine = self._valid_for_prefixes, self._texts[step]
        covers = whole is not None and len(whole) == len(mine) and _continue(whole, mine)
        # The long run may differ where the length matters: only the own prefix decides then.
        if whole is not None and covers and self._agree(step, logits, self._uncached_logits[whole]):
            return True
        return self._agree(step, logits, self._uncached(self._rows(step)))

    def _agree(self, step: int, logits: Tensor, right: Tensor) -> bool:
        """Whether `logits` of `step`, those of all its positions or of the last ones, are the
        `right` ones of its rows."""
        for group in self.sizes[step].of_last(logits.shape[1]).groups:
            rows = slice(None) if group.row is None else slice(group.row, group.row + 1)
            new, positions = list(group.new), list(group.new_positions)
            if not is_close(logits[rows, new], right[rows, positions]):
                return False
        return True

    def _find_covering(self, step: int) -> int:
        mine, sizes = self._texts[step], self.sizes[step]
        for later in reversed(self._texts):
            theirs = self._texts[later]
            if not step < later <= self._last or len(theirs) != len(mine):
                continue
            # A run as long as the step's slots or chunk would leave its axes ambiguous.
            fits = self.sizes[later].length not in (sizes.slots, sizes.fed)
            if _continue(theirs, mine) and fits:
                return later
        return step

    def _key(self, step: int) -> tuple[_TokenRows, bool]:
        """Returns the rows of the own reference of `step`, and whether to try it as one call with a
        cache: not for a step that is itself such a call, which would be compared with itself."""
        one_call = self._steps[step].filled or not self.sizes[step].plain
        return _fill(self._texts[step], self.sizes[step].length), one_call

    def _rows(self, step: int) -> _TokenRows:
        """Returns the rows of the own reference of `step`."""
        return self._keys[step][0]

    def _sizes_of(self, step: int, length: int) -> AxisSizes:
        if (step, length) not in self._sizes:
            one = self._steps[step]
            self._sizes[step, length] = axis_sizes(slot_positions(one), one.size, length)
        return self._sizes[step, length]

    def _uncached(self, rows: _TokenRows) -> Tensor:
        """Returns the logits of an unrecorded uncached run over `rows`."""
        if rows not in self._uncached_logits:
            self._uncached_logits[rows] = run_uncached(self._subject, rows)
        return self._uncached_logits[rows]

    def _run(self, rows: _TokenRows, one_call: bool) -> ReferenceRun:
        whole = replace(self._case, tokens=rows, schedule=(len(rows[0]),), keep=None)
        calls = call_limits_of(self._subject)
        if one_call and not calls.last_only and calls.takes(len(rows[0]), filled=False):
            with suppress(CachedPathRaised, Refused):
                cached = self._recorded(lambda: run_cached(self._subject, whole))
                if logits_agree(cached.logits, self._uncached(rows), self._subject):
                    return cached
        return self._recorded(lambda: run_uncached(self._subject, rows))

    def _recorded(self, run: Callable[[], Tensor]) -> ReferenceRun:
        return run_reference(self._subject, run, self._watched, self._operations)


def logits_agree(found: Tensor, right: Tensor, subject: Subject, fed: Tensor | None = None) -> bool:
    """Whether two runs gave the same logits at the positions that were `fed` (None: at all), up to
    rounding."""
    tolerance = constant(right, getattr(subject, "width", None), right.dtype)
    return not bool(compare(found, right, tolerance, fed).diverges.any())


def _length(rows: Sequence[Sequence[int]], step: Step) -> int:
    """Returns how many tokens the own reference of `step` takes: those of its rows, or, where
    padding makes these differ, a few more, so that no other axis has the size of that of tokens."""
    longest = max(map(len, rows))
    if all(len(row) == len(step.after[0]) for row in rows):
        return longest
    length = longest + 1
    while length in (step.size, len(step.after[0]), len(rows)):
        length += 1
    return length


def _continue(rows: _TokenRows, prefixes: _TokenRows) -> bool:
    """Whether each of `rows` begins with its own one of `prefixes`."""
    return all(row[: len(one)] == one for row, one in zip(rows, prefixes, strict=True))


def _fill(rows: Sequence[tuple[int, ...]], length: int) -> _TokenRows:
    """Extends `rows` on the right to `length`; a causal path does not see the extra tokens."""
    return tuple(row + row[-1:] * (length - len(row)) for row in rows)
