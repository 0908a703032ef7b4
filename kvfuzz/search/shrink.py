"""Makes a failing case small: tries simpler versions of it (`kvfuzz.search.reductions`) as long as
one of them still fails.

Shrinking is bounded, by default in forward passes of the subject, and can go on later from the
smallest case so far: a case is all that it needs to know.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Collection
from contextlib import suppress
from dataclasses import dataclass, field

from kvfuzz.case.case import Case
from kvfuzz.case.verdict import Verdict
from kvfuzz.errors import InvalidCase, KvfuzzError
from kvfuzz.search.judge import judge
from kvfuzz.search.programs import has_required_args
from kvfuzz.search.reductions import REDUCTIONS, up_to_column, without_row
from kvfuzz.search.strategies import Space
from kvfuzz.subjects.protocol import Factory
from kvfuzz.subjects.run import Passes, count_passes

PASSES = 1000
"""Forward passes that shrinking takes at most, unless it is told otherwise."""


@dataclass(frozen=True)
class Bound:
    """When shrinking stops: after `passes` forward passes or `seconds`, whichever comes first."""

    passes: int | None = PASSES
    seconds: float | None = None


@dataclass(frozen=True)
class Shrunk:
    """The smallest case that was found, with its verdict. `passes` counts the forward passes that
    this took. `done` says that no simpler version fails; if not, the bound was reached, or the
    shrinking was `interrupted`, and `tried` has the digests of the versions that were judged."""

    case: Case
    verdict: Verdict
    passes: int
    done: bool
    interrupted: bool = False
    tried: frozenset[str] = frozenset()


def shrink(
    case: Case,
    verdict: Verdict,
    judged: Callable[[Case], Verdict],
    space: Space,
    bound: Bound | None = None,
    stops: tuple[type[BaseException], ...] = (),
    tried: Collection[str] = (),
) -> Shrunk:
    """Returns the smallest version of `case` found on which `judged` gives a verdict like
    `verdict`, the one on `case` (`fails_alike`).

    Tries no version that lacks an argument which a subject of this `space` needs or makes a call
    that it does not take, and none that was
    `tried` when this shrinking was begun. A version that
    `judged` refuses by a KvfuzzError does not fail. What it raises of the classes in `stops` ends
    the shrinking as the bound does: the smallest case so far counts.
    """
    with count_passes() as passes:
        bound = bound or Bound()
        run = _Shrinking(case, verdict, judged, space, bound, passes, tried={*tried})
        done = interrupted = False
        try:
            run.cut()
            while run.reduce():
                pass
            done = True
        except _BoundReached:
            pass
        except stops:
            interrupted = True
    left = frozenset() if done else frozenset(run.tried)
    return Shrunk(run.case, run.verdict, passes.count, done, interrupted, left)


def judge_like(failed: Verdict, factory: Factory, case: Case, leeway: float = 1.0) -> Verdict:
    """Judges a version of a case that `failed`, by the law that it broke. Raises KvfuzzError if it
    does not fit the subject."""
    judgement = judge(
        factory.subject(case),
        case,
        failed.law,
        factory.name,
        leeway=leeway,
        trace=failed.precision is not None,
        probe=False,
    )
    return judgement.companion or judgement.agreement


def fails_alike(verdict: Verdict, failed: Verdict) -> bool:
    """Returns whether `verdict` diverged in the same way as one that `failed`: by the same law, and
    alike in whether a path rounded. Where a path raised, other logits count too, which are worse;
    but not the other way round."""
    if not verdict.diverged or verdict.law != failed.law:
        return False
    rounds = verdict.precision is not None, failed.precision is not None
    return len(set(rounds)) == 1 and (verdict.error is None or failed.error is not None)


def cut_versions(case: Case, verdict: Verdict) -> list[Case]:
    """Returns the versions of `case` without what its `verdict` shows to be needless, the smaller
    one first: steps after the first divergence, and rows that agree. They are the same run up to
    there, so one of them nearly always diverges as well."""
    first = verdict.first
    if first is None:
        return []
    stop = next(step.stop for step in case.steps() if step.stop > first.column)
    whole = alone = up_to_column(case, stop)
    with suppress(InvalidCase):
        for row in reversed(range(case.batch)):
            if row != first.row:
                alone = without_row(alone, row)
    versions = (alone, whole) if alone.batch == 1 else (whole,)
    return [one for one in versions if one != case]


class _BoundReached(BaseException):
    """No pass or no time is left. Not an Exception, so that no subject keeps it."""


@dataclass
class _Shrinking:
    """The smallest `case` so far with its `verdict`, and the versions that were `tried`."""

    case: Case
    verdict: Verdict
    judged: Callable[[Case], Verdict]
    space: Space
    bound: Bound
    passes: Passes
    started: float = field(default_factory=time.monotonic)
    tried: set[str] = field(default_factory=set)

    def cut(self) -> None:
        """Takes off what the verdict shows to be needless."""
        for version in cut_versions(self.case, self.verdict):
            if self._fails(version):
                return

    def reduce(self) -> bool:
        """Makes the case smaller by each reduction, as long as it does; returns whether any did."""
        before = self.case
        for reduction in REDUCTIONS:
            while any(map(self._fails, reduction(self.case, self.space))):
                pass
        return self.case != before

    def _fails(self, case: Case) -> bool:
        """Judges a version that was not tried; keeps it if it fails. Raises _BoundReached."""
        key = hashlib.sha256(repr(case).encode()).hexdigest()[:12]
        if key in self.tried or not has_required_args(case, self.space.offers):
            return False
        if self.space.calls.refused_step(case) is not None:
            return False
        self._check_bound()
        try:
            verdict = self.judged(case)
        except KvfuzzError:
            verdict = Verdict("discarded")
        self.tried.add(key)
        if not fails_alike(verdict, self.verdict):
            return False
        self.case, self.verdict = case, verdict
        return True

    def _check_bound(self) -> None:
        most, seconds = self.bound.passes, self.bound.seconds
        if most is not None and self.passes.count >= most:
            raise _BoundReached
        if seconds is not None and time.monotonic() >= self.started + seconds:
            raise _BoundReached
