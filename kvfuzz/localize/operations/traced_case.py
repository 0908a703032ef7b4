"""The states inside a torch model on one case: recorded, and beside those of its references."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from torch import Tensor

from kvfuzz.case.case import Case, Step
from kvfuzz.case.layout import layout
from kvfuzz.localize.operations.align import Frame
from kvfuzz.localize.operations.comparisons import Comparisons, answer
from kvfuzz.localize.operations.events import Recording
from kvfuzz.localize.operations.record import WatchedSubject, record
from kvfuzz.localize.operations.reference import measured
from kvfuzz.localize.operations.reference_runs import References
from kvfuzz.subjects.protocol import Subject
from kvfuzz.subjects.run import CachedPathRaised, Refused, run_cached, run_uncached


@dataclass(frozen=True)
class Inside:
    """The cached run of a case: its events, and by index each one's comparison with the references
    of its step. `logits` are those of the run, None where the last step raised: `error` is what it
    raised then, if it did not just refuse."""

    recording: Recording
    found: Comparisons
    steps: tuple[Step, ...]
    references: References
    logits: Tensor | None = None
    error: Exception | None = None

    @property
    def raised(self) -> bool:
        return self.logits is None

    @property
    def frames(self) -> Mapping[int, Frame]:
        """For each step that feeds, its sizes and those of its own reference."""
        return self.references.frames


def inside(
    subject: Subject,
    case: Case,
    uncached: Tensor | None = None,
    prefixes: bool = False,
    operations: bool = True,
) -> Inside:
    """Every state of the cached path of `subject` on `case`, beside the same in runs over whole
    rows. `uncached` are the logits of an uncached run over its sequences, if they are known, and
    `prefixes` tells that they hold for each prefix as well. Without
    `operations`, or where they are too many, of the modules alone."""
    watched = WatchedSubject(subject)
    recording, steps, logits, error = _cached(subject, case, watched, operations)
    references = References(subject, case, steps, watched, operations)
    if uncached is not None:
        references.know(layout(case).sequences, uncached, prefixes)
    found = Comparisons(recording, references, steps)
    made = Inside(recording, found, tuple(steps), references, logits, error)
    references.end(diverging_step(made))
    if operations and not (recording.whole and references.kept()):
        return inside(subject, case, uncached, prefixes, operations=False)
    return made


def diverging_step(inside: Inside) -> int | None:
    """The first step whose logits differ, or that raised; None if there is none."""
    for step in inside.steps:
        logits = answer(inside.recording.of(step.index)) if step.feeds else None
        if logits is None or inside.references.answered(step.index, logits.output):
            continue
        if (one := inside.found.of(logits.index)) is not None and one.differs:
            return step.index
    last = inside.steps[-1].index
    return last if inside.raised else None


def inside_uncached(subject: Subject, case: Case, operations: bool = True) -> Inside:
    """Every state of one uncached run over the sequences of `case` beside the same in one call with
    a fresh cache: for a subject whose uncached path is the one to suspect."""
    watched, rows = WatchedSubject(subject), layout(case).sequences
    whole = replace(case, tokens=rows, schedule=(len(rows[0]),), given=())
    with record(watched, operations) as recording:
        recording.step = 0
        logits = run_uncached(subject, rows)
    steps = tuple(whole.steps())
    references = References(subject, whole, steps, watched, operations)
    references.take(0, measured(subject, lambda: run_cached(subject, whole), watched, operations))
    if operations and not (recording.whole and references.kept()):
        return inside_uncached(subject, case, operations=False)
    found = Comparisons(recording, references, steps)
    return Inside(recording, found, steps, references, logits)


def _cached(
    subject: Subject, case: Case, watched: WatchedSubject, operations: bool
) -> tuple[Recording, list[Step], Tensor | None, Exception | None]:
    """The cached run of `case` and its logits, up to the step that raised, if one did, with the
    error."""
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
