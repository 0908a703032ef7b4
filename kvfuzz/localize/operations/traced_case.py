"""Traces a case: records every operation of one path, to be compared with its reference runs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property

from torch import Tensor

from kvfuzz.case.case import Case, Step
from kvfuzz.case.layout import layout
from kvfuzz.localize.operations.align import AxisSizes
from kvfuzz.localize.operations.comparisons import Comparisons
from kvfuzz.localize.operations.difference import is_close
from kvfuzz.localize.operations.events import Recording, find_logits
from kvfuzz.localize.operations.record import WatchedSubject, record
from kvfuzz.localize.operations.reference_runs import ReferenceRuns, UncachedRun, run_reference
from kvfuzz.subjects.protocol import Subject
from kvfuzz.subjects.run import CachedPathRaised, Refused, run_cached, run_uncached


@dataclass(frozen=True)
class TracedCase:
    """A recorded run of a case, and the comparison of each event with the references of its step.
    `logits` are those of the run, None where the last step raised; `error` is what it raised, None
    if it refused the step. `right` remembers which events are right."""

    recording: Recording
    comparisons: Comparisons
    steps: tuple[Step, ...]
    references: ReferenceRuns
    logits: Tensor | None = None
    error: Exception | None = None
    right: dict[int, bool] = field(default_factory=dict, repr=False, compare=False)

    @property
    def raised(self) -> bool:
        return self.logits is None

    @cached_property
    def diverging_step(self) -> int | None:
        """The first step whose logits differ, or that raised; None if there is none."""
        for step in self.steps:
            logits = find_logits(self.recording.of(step.index)) if step.feeds else None
            if logits is None or self.references.matches_uncached(step.index, logits.output):
                continue
            if (one := self.comparisons.of(logits.index)) is not None and one.differs:
                return step.index
        return self.steps[-1].index if self.raised else None

    @property
    def sizes(self) -> Mapping[int, AxisSizes]:
        """For each step that feeds tokens, its sizes and those of its own reference."""
        return self.references.sizes


def trace_case(
    subject: Subject,
    case: Case,
    uncached: UncachedRun | None = None,
    operations: bool = True,
) -> TracedCase:
    """Records the cached path of `subject` on `case`, with references over whole rows.

    `uncached` is an uncached run over rows that begin as its sequences do, if one is known. Without
    `operations`, or where these take too much memory, only the results of modules are recorded.
    """
    watched = WatchedSubject(subject)
    recording, steps, logits, error = _record_cached(subject, case, watched, operations)
    references = ReferenceRuns(subject, case, steps, watched, operations)
    if uncached is not None:
        references.set_uncached(uncached)
    comparisons = Comparisons(recording, references, steps)
    traced = TracedCase(recording, comparisons, tuple(steps), references, logits, error)
    references.stop_at(traced.diverging_step)
    if operations and not (recording.whole and references.kept_operations()):
        return trace_case(subject, case, uncached, operations=False)
    return traced


def trace_to_divergence(
    subject: Subject, case: Case, uncached: Tensor, cached: Tensor | None, prefixes: bool
) -> TracedCase:
    """Records the cached path of `subject` on `case` up to the step that goes wrong.

    `uncached` and `cached` (None if that path raised) are the logits of both paths in plain runs:
    they tell the step. `prefixes` says that the former hold for each prefix as well.
    """
    rows = layout(case).sequences
    known = UncachedRun(rows, uncached, prefixes)
    if prefixes and cached is not None:
        first = _up_to_difference(case, uncached, cached)
        traced = trace_case(subject, first, known)
        # What differs by more than the least tolerance may still be within the noise.
        if first == case or traced.diverging_step is not None:
            return traced
    return trace_case(subject, case, known)


def _up_to_difference(case: Case, uncached: Tensor, cached: Tensor) -> Case:
    """Returns `case` up to the first call whose `cached` logits differ from the `uncached` ones."""
    found = layout(case)
    right = found.table(uncached)
    calls = [step for step in case.steps() if step.feeds]
    for number, step in enumerate(calls, 1):
        cells = slice(step.batch), slice(step.start, step.stop)
        fed = found.fed[cells].to(right.device)
        if not is_close(cached[cells][fed], right[cells][fed]):
            # The first call shows which axis holds the tokens only beside one of another size.
            other = (n for n, one in enumerate(calls, 1) if one.size != step.size)
            return case.up_to_call(next(other, number) if number == 1 else number)
    return case


def trace_uncached(subject: Subject, case: Case, operations: bool = True) -> TracedCase:
    """Records one uncached run over the sequences of `case`, with one call on a fresh cache as its
    reference: for a subject whose uncached path is suspected."""
    watched, rows = WatchedSubject(subject), layout(case).sequences
    whole = replace(case, tokens=rows, schedule=(len(rows[0]),), given=())
    with record(watched, operations) as recording:
        recording.step = 0
        logits = run_uncached(subject, rows)
    steps = tuple(whole.steps())
    references = ReferenceRuns(subject, whole, steps, watched, operations)
    cached = run_reference(subject, lambda: run_cached(subject, whole), watched, operations)
    references.set_own(0, cached)
    if operations and not (recording.whole and references.kept_operations()):
        return trace_uncached(subject, case, operations=False)
    return TracedCase(
        recording, Comparisons(recording, references, steps), steps, references, logits
    )


def _record_cached(
    subject: Subject, case: Case, watched: WatchedSubject, operations: bool
) -> tuple[Recording, list[Step], Tensor | None, Exception | None]:
    """Records the cached run of `case`: returns the events, the steps up to one that raised, the
    logits (None if one did) and what it raised."""
    steps: list[Step] = []
    with record(watched, operations) as recording:

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
