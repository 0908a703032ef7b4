"""Rounds: what a hunt is made of.

A hunt is a sequence of *rounds*, each a Hypothesis run with a seed of its own, derived from the
hunt's. Rounds are the unit of time limits and of parallel work, so what a seed finds does not
depend on the number of workers.
"""

from __future__ import annotations

import secrets
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field, replace

from hypothesis.errors import Flaky

from kvfuzz.case.case import Case
from kvfuzz.case.features import features_of
from kvfuzz.case.verdict import Verdict
from kvfuzz.errors import InvalidCase, KvfuzzError
from kvfuzz.oracle.laws import COMPANIONS, NEEDED
from kvfuzz.oracle.sensitivity import MOST_STEPS
from kvfuzz.search.hypothesis_run import TARGETED, derived_seed, run_strategy
from kvfuzz.search.judge import Judgement, judge
from kvfuzz.search.known_divergences import Expectation
from kvfuzz.search.shrink import simplify
from kvfuzz.search.strategies import Space
from kvfuzz.subjects.loading import Options
from kvfuzz.subjects.protocol import Factory

ROUND = 50
# A hunt begins with short rounds, which several processes can share, and goes on with long ones,
# in which climbing the excess pays.
SHORT_ROUNDS = 4
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

    `positions` and `weak_positions` count positions; `discarded`, `weak`, `vacuous` and
    `prefixwise` cases. `read` counts those that agreed and read their cache, which only a second
    step does: they are the evidence. `exercised` counts, of each element of a case and of each
    companion law, the cases that agreed; `expected` those that diverged as expectation number i of
    the plan says.
    """

    cases: int = 0
    positions: int = 0
    weak_positions: int = 0
    discarded: int = 0
    weak: int = 0
    vacuous: int = 0
    read: int = 0
    prefixwise: int = 0
    worst_excess: float = 0.0
    reasons: tuple[str, ...] = ()
    bases: tuple[str, ...] = ()
    exercised: Counter[str] = field(default_factory=Counter)
    expected: Counter[int] = field(default_factory=Counter)
    failure: Failure | None = None

    def add(self, case: Case, verdict: Verdict, companion: Verdict | None = None) -> None:
        agreed = verdict.status == "agreed"
        if agreed:
            self.exercised.update(features_of(case))
        if companion is not None and companion.status == "agreed":
            self.exercised[companion.law] += 1
        self.cases += 1
        self.positions += verdict.positions if agreed or verdict.diverged else 0
        self.weak_positions += verdict.weak_positions
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
    the epoch; `database` the folder of kept cases; `laws` the companion laws that cases are held
    to, each in its turn; `expected` are divergences that end no hunt."""

    subject: str
    options: Options
    space: Space
    seed: int
    examples: int | None
    until: float | None
    database: str | None = None
    laws: tuple[str, ...] = COMPANIONS
    expected: tuple[Expectation, ...] = ()

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
        kinds = [step.kind for step in case.up_to_call(MOST_STEPS).steps()]
        code = repr((case.dtype, sorted(case.config.items()), sorted({*kinds, *case.given})))
        law = _law_of(plan, tally)
        try:
            found = _judge(
                factory, plan, case, law, trace=code not in traced, probe=tally.failure is None
            )
        except KvfuzzError as error:
            raise _Refused(error) from error
        verdict = found.verdict
        known = _expected(plan, case, verdict)
        if tally.failure is None:
            if known is None:
                tally.add(case, verdict, found.companion)
            else:
                tally.cases, tally.expected[known] = tally.cases + 1, tally.expected[known] + 1
            if progress is not None:
                progress(before + tally.cases)
        if known is not None:
            return verdict
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
        run_strategy(
            plan.space, plan.round_seed(index), plan.round_size(index), examine, plan.database
        )
    except _Refused as refused:
        raise refused.error from None
    except _Diverged as found:
        tally.failure = _simplest(factory, plan, Failure(found.case, found.verdict))
    except Flaky:
        assert tally.failure is not None
        tally.failure = replace(tally.failure, repeatable=False)
    return tally


def _simplest(factory: Factory, plan: Plan, failure: Failure) -> Failure:
    """`failure` without what it does not need: the simplest case with a failure of its kind."""
    found = failure

    def fails(case: Case) -> bool:
        nonlocal found
        law = failure.verdict.law
        try:
            judgement = _judge(factory, plan, case, law, trace=True, probe=False)
        except InvalidCase:
            return False  # a token that the vocabulary does not have
        verdict = judgement.companion or judgement.agreement
        fails = verdict.diverged and _kind(verdict) == _kind(failure.verdict)
        if fails and _expected(plan, case, verdict) is None:
            found = Failure(case, verdict)
            return True
        return False

    # A subject that breaks the protocol on another case has been found failing all the same.
    with suppress(KvfuzzError):
        simplify(failure.case, fails, plan.space.offers)
    return found


def _kind(verdict: Verdict) -> tuple[str, bool, bool]:
    """What makes two divergences of one kind: the law, and whether a path raised or rounded."""
    return verdict.law, verdict.error is not None, verdict.precision is not None


def _law_of(plan: Plan, tally: Tally) -> str:
    """The companion law that the next case is held to: each in its turn, and while a failure is
    shrunk the one that failed (`agreement` itself needs no companion)."""
    if tally.failure is not None:
        return tally.failure.verdict.law
    laws = [law for law in plan.laws if NEEDED.get(law, "") in (*plan.space.offers, "")]
    return laws[tally.cases % len(laws)] if laws else "agreement"


def _expected(plan: Plan, case: Case, verdict: Verdict) -> int | None:
    """The number of the expectation that the diverged `verdict` meets."""
    if not verdict.diverged:
        return None
    found = (
        number
        for number, one in enumerate(plan.expected)
        if one.is_about(plan.subject) and one.covers(case, verdict)
    )
    return next(found, None)


def _judge(
    factory: Factory, plan: Plan, case: Case, law: str, trace: bool, probe: bool
) -> Judgement:
    subject, leeway = factory.subject(case), plan.options.leeway(case.dtype)
    return judge(subject, case, law, factory.name, leeway=leeway, trace=trace, probe=probe)


def drawn_cases(space: Space, seed: int, examples: int) -> list[Case]:
    """The `examples` cases that a hunt under `seed` examines, in order, if it has none to draw
    again."""
    plan = Plan("", Options(), space, seed, examples, None)
    found: list[Case] = []
    index = 0
    while plan.round_size(index):
        run_strategy(space, plan.round_seed(index), plan.round_size(index), found.append)
        index += 1
    return found


def merged(total: Tally, more: Tally) -> Tally:
    """Two tallies of consecutive rounds as one."""
    counts = "cases positions weak_positions discarded weak vacuous read prefixwise"
    return Tally(
        **{name: getattr(total, name) + getattr(more, name) for name in counts.split()},
        worst_excess=max(total.worst_excess, more.worst_excess),
        reasons=tuple(dict.fromkeys((*total.reasons, *more.reasons)))[:MOST_REASONS],
        bases=tuple(dict.fromkeys((*total.bases, *more.bases))),
        exercised=total.exercised + more.exercised,
        expected=total.expected + more.expected,
        failure=total.failure or more.failure,
    )


def fresh_seed() -> int:
    return secrets.randbits(32)


def shard_seed(seed: int, shard: tuple[int, int] | None) -> int:
    """The seed of its own that `shard` (k, n) hunts with."""
    return seed if shard is None else derived_seed(seed, f"shard {shard[0]} of {shard[1]}")
