"""Rounds: the units of work of a hunt.

Each round draws its cases under a seed derived from the hunt's seed and the number of the round.
Workers take whole rounds, and a time limit ends the hunt between cases of a round, so what a seed
finds does not depend on the number of workers.
"""

from __future__ import annotations

import secrets
import time
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass, field
from typing import Any

from kvfuzz.case.case import Case
from kvfuzz.case.features import features_of, longest_read
from kvfuzz.case.verdict import Verdict
from kvfuzz.errors import KvfuzzError
from kvfuzz.oracle.laws import COMPANIONS, NEEDED
from kvfuzz.oracle.sensitivity import MOST_STEPS
from kvfuzz.search.hypothesis_run import TARGETED, derive_seed, run_strategy
from kvfuzz.search.judge import Judgement, judge
from kvfuzz.search.judge_narrow import FIRST_NARROW, judge_narrow
from kvfuzz.search.known_divergences import Expectation
from kvfuzz.search.second_cache import run_twice
from kvfuzz.search.shrink import PASSES, Bound, Shrunk, fails_alike, judge_like, shrink
from kvfuzz.search.strategies import Space
from kvfuzz.subjects.loading import Options
from kvfuzz.subjects.protocol import Factory

ROUND = 50
SHORT_ROUNDS = 4
"""A hunt begins with this many rounds of ROUND cases, which several processes can share. Then come
rounds of TARGETED cases, which are long enough to climb the excess."""
MOST_REASONS = 3
RECENT = 50
"""So many cases before a failure are kept, in case that it needs them (`kvfuzz.search.alone`)."""


@dataclass
class Tally:
    """Counts over the cases of one or several rounds, up to the first case that diverged.

    `positions` and `weak_positions` count positions, the others cases: `discarded`, `weak`,
    `vacuous` and `prefixwise` ones by their verdict; in `read` those that agreed and read their
    cache, which is the evidence (only a second step reads a cache); in `exercised`, by feature and
    by companion law, those that agreed; in `vacuous_laws`, those in which it could not have failed;
    in `expected`, by index in the plan, those that diverged as expected. `longest` is the longest
    row of a case that agreed, up to a call that read it. `narrow` counts those that ran in a narrow
    dtype too, and `not_narrow` says why others could not be judged there.
    """

    cases: int = 0
    positions: int = 0
    weak_positions: int = 0
    discarded: int = 0
    weak: int = 0
    vacuous: int = 0
    read: int = 0
    prefixwise: int = 0
    longest: int = 0
    worst_excess: float = 0.0
    reasons: tuple[str, ...] = ()
    bases: tuple[str, ...] = ()
    exercised: Counter[str] = field(default_factory=Counter)
    vacuous_laws: Counter[str] = field(default_factory=Counter)
    expected: Counter[int] = field(default_factory=Counter)
    narrow: Counter[str] = field(default_factory=Counter)
    not_narrow: tuple[str, ...] = ()
    failure: Shrunk | None = None
    before_failure: tuple[Case, ...] = ()

    def add(self, case: Case, judgement: Judgement) -> None:
        """Counts a case by its judgement."""
        verdict, companion = judgement.verdict, judgement.companion
        agreed = verdict.status == "agreed"
        if agreed:
            self.exercised.update(features_of(case))
            self.longest = max(self.longest, longest_read(case))
        if companion is not None and companion.status == "agreed":
            self.exercised[companion.law] += 1
        if companion is not None and companion.status == "vacuous":
            self.vacuous_laws[companion.law] += 1
        self.cases += 1
        self.positions += verdict.positions if agreed or verdict.diverged else 0
        self.weak_positions += verdict.weak_positions
        self.discarded += verdict.status == "discarded"
        self.weak += verdict.status == "weak"
        self.vacuous += verdict.status == "vacuous"
        self.read += agreed and case.reads_cache
        self.prefixwise += verdict.prefixwise
        if verdict.basis != "least":
            self.worst_excess = max(self.worst_excess, verdict.excess)
        self.reasons = _distinct((*self.reasons, verdict.reason))[:MOST_REASONS]
        self.bases = _distinct((*self.bases, verdict.basis))

    def __add__(self, more: Tally) -> Tally:
        """Returns the tally of these rounds and the ones that follow."""
        counts = "cases positions weak_positions discarded weak vacuous read prefixwise"
        return Tally(
            **{name: getattr(self, name) + getattr(more, name) for name in counts.split()},
            longest=max(self.longest, more.longest),
            worst_excess=max(self.worst_excess, more.worst_excess),
            reasons=_distinct((*self.reasons, *more.reasons))[:MOST_REASONS],
            bases=_distinct((*self.bases, *more.bases)),
            exercised=self.exercised + more.exercised,
            vacuous_laws=self.vacuous_laws + more.vacuous_laws,
            expected=self.expected + more.expected,
            narrow=self.narrow + more.narrow,
            not_narrow=_distinct((*self.not_narrow, *more.not_narrow))[:MOST_REASONS],
            failure=self.failure or more.failure,
            before_failure=self.before_failure or more.before_failure,
        )

    def to_json(self) -> dict[str, Any]:
        found = self.failure
        # A failure of a round has not been shrunk: its case and verdict are all there is.
        failure = found and {"case": found.case.to_json(), "verdict": asdict(found.verdict)}
        before = [case.to_json() for case in self.before_failure]
        return {**vars(self), "failure": failure, "before_failure": before}

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Tally:
        """Returns the tally that `to_json` gave, after a round trip through JSON."""
        made, found = cls(**data), data["failure"]
        made.reasons, made.bases = tuple(made.reasons), tuple(made.bases)
        made.narrow, made.not_narrow = Counter(made.narrow), tuple(made.not_narrow)
        made.exercised, made.vacuous_laws = Counter(made.exercised), Counter(made.vacuous_laws)
        made.expected = Counter({int(index): n for index, n in made.expected.items()})
        made.before_failure = tuple(map(Case.from_json, made.before_failure))
        if found is not None:
            case, verdict = Case.from_json(found["case"]), Verdict.from_json(found["verdict"])
            made.failure = Shrunk(case, verdict, passes=0, done=False)
        return made


def _distinct(words: Iterable[str | None]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(word for word in words if word is not None))


@dataclass(frozen=True)
class Plan:
    """A hunt as plain values, which can be sent to another process.

    `until` is the time limit in seconds since the epoch, `database` the folder of saved failing
    cases. Each case is also checked by one of the companion `laws`, in rotation. Divergences that
    are `expected` do not end the hunt. One that does is shrunk in at most
    `shrink_passes` forward passes.
    """

    subject: str
    options: Options
    space: Space
    seed: int
    examples: int | None
    until: float | None
    database: str | None = None
    laws: tuple[str, ...] = COMPANIONS
    expected: tuple[Expectation, ...] = ()
    shrink_passes: int = PASSES

    def round_size(self, index: int) -> int:
        """Returns the number of cases of round `index`; 0 past the last round."""
        size = ROUND if index < SHORT_ROUNDS else TARGETED
        return size if self.examples is None else max(0, min(size, self.examples - _start(index)))

    def rounds(self) -> Iterator[int]:
        """Yields the indices of the rounds, until time is up; the first in any case."""
        index = 0
        while self.round_size(index) and (index == 0 or not self.overdue):
            yield index
            index += 1

    def round_of(self, case: int) -> int:
        """Returns the index of the round that holds case number `case`."""
        index = 0
        while _start(index + 1) <= case:
            index += 1
        return index

    def round_seed(self, index: int) -> int:
        return derive_seed(self.seed, f"round {index}")

    @property
    def overdue(self) -> bool:
        return self.until is not None and time.time() >= self.until

    def law_of(self, case: int) -> str:
        """Returns the companion law for case number `case`, among the laws that the subject offers;
        `agreement` if there is none."""
        laws = [law for law in self.laws if NEEDED.get(law, "") in (*self.space.offers, "")]
        return laws[case % len(laws)] if laws else "agreement"

    def expectation_for(self, case: Case, verdict: Verdict) -> int | None:
        """Returns the index of the first expectation that covers `verdict`; None if it did not
        diverge or is not expected."""
        if not verdict.diverged:
            return None
        for index, one in enumerate(self.expected):
            if one.is_about(self.subject) and one.covers(case, verdict):
                return index
        return None


def _start(index: int) -> int:
    """Returns the number of cases in the rounds before round `index`."""
    return ROUND * min(index, SHORT_ROUNDS) + TARGETED * max(0, index - SHORT_ROUNDS)


def run_rounds(factory: Factory, plan: Plan, progress: Callable[[int], None] | None) -> Tally:
    """Runs the rounds of `plan` in order, up to the first failure."""
    total = Tally()
    for index in plan.rounds():
        total += run_round(factory, plan, index, progress, total.cases)
        if total.failure is not None:
            break
    return total


def run_round(
    factory: Factory,
    plan: Plan,
    index: int,
    progress: Callable[[int], None] | None = None,
    before: int = 0,
) -> Tally:
    """Runs one round of `plan`, up to the first failure, which is not shrunk yet. `progress` is
    called with the number of cases done, of which `before` were done in earlier rounds."""
    seed, examples = plan.round_seed(index), plan.round_size(index)
    run = _Round(factory, plan, progress, before, climbs=examples >= TARGETED)
    try:
        run_strategy(plan.space, seed, examples, run.examine, plan.database, index)
    except _Refused as refused:
        raise refused.error from None
    except _Diverged as found:
        run.tally.failure = Shrunk(found.case, found.verdict, passes=0, done=False)
        run.tally.before_failure = tuple(run.recent)
    return run.tally


def shrink_failure(factory: Factory, plan: Plan, failure: Shrunk) -> Shrunk:
    """Returns the simplest case found that fails in the same way as the one of `failure`, or as a
    program that runs it twice, where it is not repeatable. Ctrl-C
    ends the shrinking, and the smallest case so far counts."""

    def judge_again(case: Case) -> Verdict:
        leeway = plan.options.leeway(case.dtype)
        verdict = judge_like(failure.verdict, factory, case, leeway)
        if plan.expectation_for(case, verdict) is not None:
            return Verdict("discarded", reason="a known divergence")
        return verdict

    failure = _in_one_program(factory, plan, failure)
    bound = Bound(plan.shrink_passes)
    stops = (KeyboardInterrupt,)
    return shrink(failure.case, failure.verdict, judge_again, plan.space, bound, stops)


def _in_one_program(factory: Factory, plan: Plan, failure: Shrunk) -> Shrunk:
    """Returns the failure of a case that gave other logits when it ran again, as the divergence of
    a program that runs it twice, if that diverges: it can be located."""
    twice = run_twice(failure.case) if failure.verdict.law == "repeatability" else None
    if twice is None:
        return failure
    agreement = Verdict("diverged")
    try:
        verdict = judge_like(agreement, factory, twice, plan.options.leeway(twice.dtype))
    except KvfuzzError:
        return failure
    known = plan.expectation_for(twice, verdict) is not None
    if not fails_alike(verdict, agreement) or known:
        return failure
    return Shrunk(twice, verdict, failure.passes, failure.done)


class _Diverged(Exception):
    """Carries a failing case through Hypothesis, which keeps it in its database."""

    def __init__(self, case: Case, verdict: Verdict) -> None:
        super().__init__(verdict.status)
        self.case = case
        self.verdict = verdict


class _Refused(BaseException):
    """Carries an error that is not a divergence through Hypothesis, which keeps every Exception as
    a failing case but passes a BaseException on."""

    def __init__(self, error: KvfuzzError) -> None:
        super().__init__(str(error))
        self.error = error


@dataclass
class _Round:
    factory: Factory
    plan: Plan
    progress: Callable[[int], None] | None
    before: int
    climbs: bool
    tally: Tally = field(default_factory=Tally)
    traced: set[str] = field(default_factory=set)
    recent: deque[Case] = field(default_factory=lambda: deque(maxlen=RECENT))
    turns: int = 0
    """How many of the narrow dtypes had their turn."""

    def examine(self, case: Case) -> Verdict | None:
        """Judges `case` and counts it. Raises _Diverged if it diverged and is not expected to.
        Returns None once time is up; one case is run however late a worker starts."""
        tally = self.tally
        if tally.cases and self.plan.overdue:
            return None
        branches = _branches_of(case)
        law = self.plan.law_of(tally.cases)
        try:
            judgement = self._judge(case, law, trace=not branches <= self.traced)
        except KvfuzzError as error:
            raise _Refused(error) from error
        verdict = judgement.verdict
        expected = self.plan.expectation_for(case, verdict)
        if expected is None:
            tally.add(case, judgement)
        else:
            tally.cases += 1
            tally.expected[expected] += 1
        if self.progress is not None:
            self.progress(self.before + tally.cases)
        if verdict.diverged and expected is None:
            raise _Diverged(case, verdict)
        self.recent.append(case)
        if verdict.status in ("agreed", "weak"):
            self.traced |= branches
            self._run_narrow(case)
        return verdict

    def _run_narrow(self, case: Case) -> None:
        """Runs `case` in a narrow dtype as well, if it is the turn of one. Raises _Diverged."""
        tally, dtypes, turn = self.tally, self.factory.narrow, self.turns
        if turn == len(dtypes) or not case.reads_cache or tally.cases <= FIRST_NARROW:
            return
        self.turns += 1
        leeway = self.plan.options.leeway(dtypes[turn])
        narrow, verdict = judge_narrow(self.factory, case, dtypes[turn], leeway)
        if verdict.diverged and self.plan.expectation_for(narrow, verdict) is None:
            raise _Diverged(narrow, verdict)
        if verdict.status == "discarded":
            why = f"{dtypes[turn]}: {verdict.reason}"
            tally.not_narrow = _distinct((*tally.not_narrow, why))[:MOST_REASONS]
        else:
            tally.narrow[dtypes[turn]] += 1

    def _judge(self, case: Case, law: str, trace: bool) -> Judgement:
        subject, name = self.factory.subject(case), self.factory.name
        leeway = self.plan.options.leeway(case.dtype)
        # A run that climbs the excess needs the measured one of every case. The first case shows
        # how the noise of the subject is measured, and whether there is room for it.
        measure = self.climbs or self.tally.cases == 0
        return judge(subject, case, law, name, leeway=leeway, trace=trace, measure=measure)


def _branches_of(case: Case) -> set[str]:
    """Returns what may decide which code runs: each setting, kind of step and argument. Empty in
    float64, where a cast to anything coarser shows in the logits.

    The dtypes that a path computes in depend on its code, not on the tokens.
    """
    if case.dtype == "float64":
        return set()
    kinds = (step.kind for step in case.up_to_call(MOST_STEPS).steps())
    settings = {"dtype": case.dtype, **case.config}
    return {
        *(f"{name} {value!r}" for name, value in settings.items()),
        *kinds,
        *case.arguments,
    }


def draw_cases(space: Space, seed: int, examples: int) -> list[Case]:
    """Returns the first `examples` cases that a hunt under `seed` examines, in order, if it never
    has to replace one that proved nothing."""
    plan = Plan("", Options(), space, seed, examples, None)
    found: list[Case] = []
    for index in plan.rounds():
        examples = plan.round_size(index)
        run_strategy(space, plan.round_seed(index), examples, found.append, index=index)
    return found


def fresh_seed() -> int:
    return secrets.randbits(32)


def shard_seed(seed: int, shard: tuple[int, int] | None) -> int:
    """Returns the seed that `shard` (k, n) of a hunt under `seed` uses."""
    return seed if shard is None else derive_seed(seed, f"shard {shard[0]} of {shard[1]}")
