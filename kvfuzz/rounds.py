"""Rounds: what a hunt is made of.

A hunt is a sequence of *rounds*, each a Hypothesis run with a seed of its own, derived from the
hunt's. Rounds are the unit of time limits and of parallel work, so what a seed finds does not
depend on the number of workers.
"""

from __future__ import annotations

import hashlib
import secrets
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace

import hypothesis
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis.database import DirectoryBasedExampleDatabase
from hypothesis.errors import Flaky, Unsatisfiable
from hypothesis.internal.conjecture.engine import ConjectureRunner
from hypothesis.internal.conjecture.providers import HypothesisProvider

from kvfuzz.agreement import check
from kvfuzz.case import Case
from kvfuzz.errors import KvfuzzError
from kvfuzz.evidence import MOST_STEPS
from kvfuzz.families import elements
from kvfuzz.laws import COMPANIONS, check_law
from kvfuzz.loading import Options
from kvfuzz.strategies import Balance, Space, cases
from kvfuzz.subject import Factory
from kvfuzz.verdict import Verdict

ROUND = 50
# A hunt begins with short rounds, which several processes can share, and goes on with long ones,
# in which climbing the excess pays.
SHORT_ROUNDS = 4
TARGETED = 200
MOST_REASONS = 3


@dataclass(frozen=True)
class Failure:
    """A case that diverged. `repeatable` is false if running it again gave another verdict."""

    case: Case
    verdict: Verdict
    repeatable: bool = True


@dataclass
class Tally:
    """What the cases of a round came to, counted until the first one that diverged.

    `rows` and `weak_rows` count positions; `discarded`, `weak`, `vacuous` and `prefixwise` cases.
    `read` counts those that agreed and read their cache, which only a second step does: they are
    the evidence. `exercised` counts, of each element of a case and of each companion law, the cases
    that agreed.
    """

    cases: int = 0
    rows: int = 0
    weak_rows: int = 0
    discarded: int = 0
    weak: int = 0
    vacuous: int = 0
    read: int = 0
    prefixwise: int = 0
    worst_excess: float = 0.0
    reasons: tuple[str, ...] = ()
    bases: tuple[str, ...] = ()
    exercised: Counter[str] = field(default_factory=Counter)
    failure: Failure | None = None

    def add(self, case: Case, verdict: Verdict, companion: Verdict | None = None) -> None:
        agreed = verdict.status == "agreed"
        if agreed:
            self.exercised.update(elements(case))
        if companion is not None and companion.status == "agreed":
            self.exercised[companion.law] += 1
        self.cases += 1
        self.rows += verdict.rows if agreed or verdict.diverged else 0
        self.weak_rows += verdict.weak_rows
        self.discarded += verdict.status == "discarded"
        self.weak += verdict.status == "weak"
        self.vacuous += verdict.status == "vacuous"
        self.read += agreed and case.reads_cache
        self.prefixwise += verdict.prefixwise
        self.worst_excess = max(self.worst_excess, verdict.excess)
        self.reasons = _with(self.reasons, verdict.reason)[:MOST_REASONS]
        self.bases = _with(self.bases, verdict.basis)


def _with(words: tuple[str, ...], word: str | None) -> tuple[str, ...]:
    return words if word is None or word in words else (*words, word)


def _start(index: int) -> int:
    """The number of cases in the rounds before round `index`."""
    return ROUND * min(index, SHORT_ROUNDS) + TARGETED * max(0, index - SHORT_ROUNDS)


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
        """The number of cases of round `index`, or what is left; 0 past the end."""
        size = ROUND if index < SHORT_ROUNDS else TARGETED
        return size if self.examples is None else max(0, min(size, self.examples - _start(index)))

    def round_of(self, case: int) -> int:
        """The round that holds the case number `case`."""
        index = 0
        while _start(index + 1) <= case:
            index += 1
        return index

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
    traced: set[str] = set()

    def examine(case: Case) -> Verdict | None:
        # At least one case is run, however late a worker begins.
        if tally.failure is None and tally.cases and plan.overdue:
            return None
        # Which dtypes a path computes in depends on its code and not on the tokens.
        kinds = [step.kind for step in case.beginning(MOST_STEPS).steps()]
        code = repr((case.dtype, sorted(case.config.items()), sorted({*kinds, *case.given})))
        law = _law_of(tally)
        try:
            verdict, companion = _judged(
                factory, plan, case, law, trace=code not in traced, probe=tally.failure is None
            )
        except KvfuzzError as error:
            raise _Refused(error) from error
        if tally.failure is None:
            tally.add(case, verdict, companion)
            if progress is not None:
                progress(before + tally.cases)
        if companion is not None and companion.diverged:
            verdict = companion
        if verdict.error is not None and verdict.diverged:
            tally.failure = tally.failure or Failure(case, verdict)
            raise _Raised(case, verdict)
        if verdict.diverged:
            tally.failure = tally.failure or Failure(case, verdict)
            raise _Diverged(case, verdict)
        if verdict.status in ("agreed", "weak"):
            traced.add(code)
        return verdict

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


def _law_of(tally: Tally) -> str:
    """The companion law that the next case is held to: each in its turn, and while a failure is
    shrunk the one that failed (`agreement` itself needs no companion)."""
    if tally.failure is not None:
        return tally.failure.verdict.law
    return COMPANIONS[tally.cases % len(COMPANIONS)]


def _judged(
    factory: Factory, plan: Plan, case: Case, law: str, trace: bool, probe: bool
) -> tuple[Verdict, Verdict | None]:
    """The verdict on `case` and, if that is not a divergence, that of the companion `law`."""
    subject = factory.subject(case)
    leeway = plan.options.leeway(case.dtype)
    verdict = check(subject, case, factory.name, leeway=leeway, trace=trace, probe=probe)
    if verdict.diverged or law == "agreement":
        return verdict, None
    return verdict, check_law(law, subject, case, factory.name)


def drive(
    space: Space,
    seed: int,
    examples: int,
    examine: Callable[[Case], Verdict | None],
    database: str | None = None,
) -> None:
    """Call `examine` on `examples` cases of `space`, the same for the same `seed`. What it raises
    is shrunk and raised.

    A case whose verdict is no evidence is drawn again, as often as there are examples. A run of
    TARGETED examples or more climbs the excess of the verdicts: a fault too small for most cases is
    then found in half as many.

    Every setting is stated: where Hypothesis sees CI, the profile that it loads there would decide
    what is not. The seed is stated too, and wins over a profile that derandomises.
    """
    phases = [Phase.reuse, Phase.generate, Phase.target, Phase.shrink]
    balance, spare, failed = Balance(space, examples), examples, False

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
        nonlocal spare, failed
        # Shrinking may try whatever it likes.
        if not failed and not balance.wants(case):
            hypothesis.reject()
        try:
            verdict = examine(case)
        except BaseException:
            failed = True
            raise
        if verdict is None or failed:
            return
        if verdict.status != "agreed" and spare:
            spare -= 1
            hypothesis.reject()
        if examples >= TARGETED:
            hypothesis.target(verdict.excess)

    with suppress(Unsatisfiable), _evenly():
        run()


@contextmanager
def _evenly() -> Iterator[None]:
    """Inside, Hypothesis draws each case anew, and the same for the same seed in every process.

    Otherwise it mixes in constants that it finds in the modules which happen to be loaded, the
    subject's among them, so that a worker or another script would draw other cases; and it follows
    each case by variations of it, which left out whole families of schedules in a run of 200 cases.
    Where a release of it has no such thing, there is nothing to take away.
    """
    real = [
        (owner, name, getattr(owner, name))
        for owner, name in (
            (HypothesisProvider, "_maybe_draw_constant"),
            (ConjectureRunner, "generate_mutations_from"),
        )
        if hasattr(owner, name)
    ]
    try:
        for owner, name, _ in real:
            setattr(owner, name, lambda *_args, **_kwargs: None)
        yield
    finally:
        for owner, name, method in real:
            setattr(owner, name, method)


def drawn_cases(space: Space, seed: int, examples: int) -> list[Case]:
    """The `examples` cases that a hunt under `seed` examines, in order, if it has none to draw
    again."""
    plan = Plan("", Options(), space, seed, examples, None)
    found: list[Case] = []
    index = 0
    while plan.round_size(index):
        drive(space, plan.round_seed(index), plan.round_size(index), found.append)
        index += 1
    return found


def merged(total: Tally, more: Tally) -> Tally:
    """Two tallies of consecutive rounds as one."""
    counts = "cases rows weak_rows discarded weak vacuous read prefixwise"
    return Tally(
        **{name: getattr(total, name) + getattr(more, name) for name in counts.split()},
        worst_excess=max(total.worst_excess, more.worst_excess),
        reasons=tuple(dict.fromkeys((*total.reasons, *more.reasons)))[:MOST_REASONS],
        bases=tuple(dict.fromkeys((*total.bases, *more.bases))),
        exercised=total.exercised + more.exercised,
        failure=total.failure or more.failure,
    )


def fresh_seed() -> int:
    return secrets.randbits(32)


def derived_seed(seed: int, purpose: str) -> int:
    """A seed for `purpose`, the same on every machine."""
    return int.from_bytes(hashlib.sha256(f"{seed} {purpose}".encode()).digest()[:6], "big")


def shard_seed(seed: int, shard: tuple[int, int] | None) -> int:
    """The seed of its own that `shard` (k, n) hunts with."""
    return seed if shard is None else derived_seed(seed, f"shard {shard[0]} of {shard[1]}")
