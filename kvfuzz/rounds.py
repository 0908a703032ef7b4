"""Rounds: what a hunt is made of.

A hunt is a sequence of *rounds*, each a Hypothesis run with a seed of its own, derived from the
hunt's. Rounds are the unit of time limits and of parallel work, so what a seed finds does not
depend on the number of workers.
"""

from __future__ import annotations

import hashlib
import secrets
import time
from collections.abc import Callable
from dataclasses import dataclass, replace

import hypothesis
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis.database import DirectoryBasedExampleDatabase
from hypothesis.errors import Flaky

from kvfuzz.agreement import check
from kvfuzz.case import Case
from kvfuzz.errors import KvfuzzError
from kvfuzz.loading import Options
from kvfuzz.strategies import Space, cases
from kvfuzz.subject import Factory
from kvfuzz.verdict import Verdict

ROUND = 50
MOST_REASONS = 3


@dataclass(frozen=True)
class Failure:
    """A case that diverged. `repeatable` is false if running it again gave another verdict."""

    case: Case
    verdict: Verdict
    repeatable: bool = True


@dataclass
class Tally:
    """What the cases of a round came to, counted until the first one that diverged."""

    cases: int = 0
    rows: int = 0
    discarded: int = 0
    prefixwise: int = 0
    worst_excess: float = 0.0
    reasons: tuple[str, ...] = ()
    failure: Failure | None = None

    def add(self, verdict: Verdict) -> None:
        self.cases += 1
        self.rows += verdict.rows
        self.discarded += verdict.status == "discarded"
        self.prefixwise += verdict.prefixwise
        self.worst_excess = max(self.worst_excess, verdict.excess)
        if verdict.reason and verdict.reason not in self.reasons:
            self.reasons = (*self.reasons, verdict.reason)[:MOST_REASONS]


class _Diverged(Exception):
    def __init__(self, case: Case, verdict: Verdict) -> None:
        super().__init__(verdict.status)
        self.case = case
        self.verdict = verdict


class _Refused(BaseException):
    """Carries an error that is no divergence past Hypothesis, which would shrink an Exception."""

    def __init__(self, error: KvfuzzError) -> None:
        super().__init__(str(error))
        self.error = error


class _Raised(_Diverged):
    """Kept apart from _Diverged, so that shrinking does not slide from one fault to another."""


@dataclass(frozen=True)
class Plan:
    """A hunt as plain values, that another process can take over. `until` is in seconds since
    the epoch; `database` the folder of kept cases."""

    subject: str
    options: Options
    space: Space
    seed: int
    examples: int | None
    until: float | None
    database: str | None = None

    def round_size(self, index: int) -> int:
        """The number of cases of round `index`: ROUND, or what is left; 0 past the end."""
        if self.examples is None:
            return ROUND
        return max(0, min(ROUND, self.examples - index * ROUND))

    def round_seed(self, index: int) -> int:
        return derived_seed(self.seed, f"round {index}")

    @property
    def overdue(self) -> bool:
        return self.until is not None and time.time() >= self.until


def run_rounds(factory: Factory, plan: Plan, progress: Callable[[int], None] | None) -> Tally:
    """The rounds of `plan`, one after the other, up to the first failure."""
    total = Tally()
    index = 0
    while plan.round_size(index) and not plan.overdue and total.failure is None:
        total = merged(total, run_round(factory, plan, index, progress, total.cases))
        index += 1
    return total


def run_round(
    factory: Factory,
    plan: Plan,
    index: int,
    progress: Callable[[int], None] | None = None,
    before: int = 0,
) -> Tally:
    """One round of `plan` on subjects of `factory`, up to the first failure."""
    tally = Tally()

    def examine(case: Case) -> None:
        # At least one case is run, however late a worker begins.
        if tally.failure is None and tally.cases and plan.overdue:
            return
        try:
            verdict = check(factory.subject(case), case, factory.name)
        except KvfuzzError as error:
            raise _Refused(error) from error
        if tally.failure is None:
            tally.add(verdict)
            if progress is not None:
                progress(before + tally.cases)
        if verdict.error is not None and verdict.diverged:
            tally.failure = tally.failure or Failure(case, verdict)
            raise _Raised(case, verdict)
        if verdict.diverged:
            tally.failure = tally.failure or Failure(case, verdict)
            raise _Diverged(case, verdict)

    try:
        drive(plan.space, plan.round_seed(index), plan.round_size(index), examine, plan.database)
    except _Refused as refused:
        raise refused.error from None
    except _Diverged as found:
        tally.failure = Failure(found.case, found.verdict)
    except Flaky:
        assert tally.failure is not None
        tally.failure = replace(tally.failure, repeatable=False)
    return tally


def drive(
    space: Space,
    seed: int,
    examples: int,
    examine: Callable[[Case], None],
    database: str | None = None,
) -> None:
    """Call `examine` on `examples` cases of `space`, the same for the same `seed`. What it raises
    is shrunk and raised.

    Every setting is stated: where Hypothesis sees CI, the profile that it loads there would decide
    what is not. The seed is stated too, and wins over a profile that derandomises.
    """
    phases = [Phase.reuse, Phase.generate, Phase.shrink]

    # Hypothesis' `seed` takes the database away, so the settings are put on top of it.
    @settings(
        max_examples=examples,
        derandomize=False,
        deadline=None,
        database=DirectoryBasedExampleDatabase(database) if database else None,
        phases=phases,
        suppress_health_check=list(HealthCheck),
        report_multiple_bugs=False,
        print_blob=False,
        verbosity=hypothesis.Verbosity.quiet,
    )
    @hypothesis.seed(seed)
    @given(cases(space))
    def run(case: Case) -> None:
        examine(case)

    run()


def drawn_cases(space: Space, seed: int, examples: int) -> list[Case]:
    """The `examples` cases that a clean hunt under `seed` examines, in order."""
    plan = Plan("", Options(), space, seed, examples, None)
    found: list[Case] = []
    index = 0
    while plan.round_size(index):
        drive(space, plan.round_seed(index), plan.round_size(index), found.append)
        index += 1
    return found


def merged(total: Tally, more: Tally) -> Tally:
    """Two tallies of consecutive rounds as one."""
    return Tally(
        total.cases + more.cases,
        total.rows + more.rows,
        total.discarded + more.discarded,
        total.prefixwise + more.prefixwise,
        max(total.worst_excess, more.worst_excess),
        tuple(dict.fromkeys((*total.reasons, *more.reasons)))[:MOST_REASONS],
        total.failure or more.failure,
    )


def fresh_seed() -> int:
    return secrets.randbits(32)


def derived_seed(seed: int, purpose: str) -> int:
    """A seed for `purpose`, the same on every machine."""
    return int.from_bytes(hashlib.sha256(f"{seed} {purpose}".encode()).digest()[:6], "big")


def shard_seed(seed: int, shard: tuple[int, int] | None) -> int:
    """The seed of its own that `shard` (k, n) hunts with."""
    return seed if shard is None else derived_seed(seed, f"shard {shard[0]} of {shard[1]}")
