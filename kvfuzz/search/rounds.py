"""Rounds: the units of work of a hunt.

Each round draws its cases under a seed derived from the hunt's seed and the number of the round.
Workers take whole rounds, and a time limit ends the hunt between cases of a round, so what a seed
finds does not depend on the number of workers.
"""

from __future__ import annotations

import secrets
import time
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from kvfuzz.case.case import Case
from kvfuzz.case.verdict import Verdict
from kvfuzz.errors import KvfuzzError
from kvfuzz.oracle.laws import COMPANIONS, NEEDED
from kvfuzz.oracle.sensitivity import MOST_STEPS
from kvfuzz.search.causes import find_cause
from kvfuzz.search.detours import past_what_raises
from kvfuzz.search.hypothesis_run import TARGETED, derive_seed, run_strategy
from kvfuzz.search.judge import Judgement, judge
from kvfuzz.search.judge_narrow import FIRST_NARROW, judge_narrow
from kvfuzz.search.known_divergences import Expectation
from kvfuzz.search.shrink import PASSES
from kvfuzz.search.strategies import Space
from kvfuzz.search.tally import MOST_REASONS, Failure, Tally, distinct
from kvfuzz.subjects.loading import Options
from kvfuzz.subjects.protocol import Factory

ROUND = 50
SHORT_ROUNDS = 4
"""A hunt begins with this many rounds of ROUND cases, which several processes can share. Then come
rounds of TARGETED cases, which are long enough to climb the excess."""
RECENT = 50
"""So many cases before a failure are kept, in case that it needs them (`kvfuzz.search.alone`)."""

Progress = Callable[[int], None]
Counted = Callable[[Tally], None]


@dataclass(frozen=True)
class Plan:
    """A hunt as plain values, which can be sent to another process.

    `until` is the time limit in seconds since the epoch, `database` the folder of saved failing
    cases. Each case is also checked by one of the companion `laws`, in rotation. Divergences that
    are `expected` do not end the hunt, and with `keep_going` no divergence does. One that is not
    expected is shrunk in at most `shrink_passes` forward passes, and located if `locate` is true.
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
    locate: bool = True
    keep_going: bool = False

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


def run_rounds(
    factory: Factory, plan: Plan, progress: Progress | None, counted: Counted | None = None
) -> Tally:
    """Runs the rounds of `plan` in order, up to the first failure unless it keeps going. `progress`
    is called with the number of cases done, `counted` with the tally after each round."""
    total = Tally()
    for index in plan.rounds():
        total += run_round(factory, plan, index, progress, total.cases)
        if counted is not None:
            counted(total)
        if total.failures and not plan.keep_going:
            break
    return total


def run_round(
    factory: Factory,
    plan: Plan,
    index: int,
    progress: Progress | None = None,
    before: int = 0,
) -> Tally:
    """Runs one round of `plan`, up to the first failure unless it keeps going; no failure is shrunk
    yet. `progress` is called with the number of cases done, of which `before` were done in earlier
    rounds."""
    seed, examples = plan.round_seed(index), plan.round_size(index)
    run = _Round(factory, plan, progress, before, climbs=examples >= TARGETED)
    try:
        run_strategy(plan.space, seed, examples, run.examine, plan.database, index)
    except _Refused as refused:
        raise refused.error from None
    except _Diverged:
        pass
    return run.tally


class _Diverged(Exception):
    """Ends a round at a failing case, which Hypothesis keeps in its database."""


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
    progress: Progress | None
    before: int
    climbs: bool
    tally: Tally = field(default_factory=Tally)
    traced: set[str] = field(default_factory=set)
    recent: deque[Case] = field(default_factory=lambda: deque(maxlen=RECENT))
    turns: int = 0
    """How many of the narrow dtypes had their turn."""

    def examine(self, case: Case) -> Verdict | None:
        """Judges `case` and counts it. Raises _Diverged if it diverged and is not expected to,
        unless the hunt keeps going: then a case that raises is led past the step that does, and the
        verdict is the one on what is left. Returns None once time is up; one case is run however
        late a worker starts."""
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
            self._note(case, verdict)
            past = past_what_raises(case, verdict)
            return self.examine(past) if past is not None and self._fits(past) else verdict
        self.recent.append(case)
        if verdict.status in ("agreed", "weak"):
            self.traced |= branches
            self._run_narrow(case)
        return verdict

    def _note(self, case: Case, verdict: Verdict) -> None:
        """Keeps or counts a case that diverged. Raises _Diverged unless the hunt keeps going."""
        tally, plan = self.tally, self.plan
        cause = find_cause(self.factory, case, verdict, plan.locate) if plan.keep_going else None
        tally.note(Failure(case, verdict, tally.cases, tuple(self.recent), cause))
        if not plan.keep_going:
            raise _Diverged
        self.recent.append(case)

    def _fits(self, case: Case) -> bool:
        """Whether the subject takes a case that was drawn as another one."""
        try:
            self.factory.subject(case)
        except KvfuzzError:
            return False
        return True

    def _run_narrow(self, case: Case) -> None:
        """Runs `case` in a narrow dtype as well, if it is the turn of one. Raises _Diverged."""
        tally, dtypes, turn = self.tally, self.factory.narrow, self.turns
        if turn == len(dtypes) or not case.reads_cache or tally.cases <= FIRST_NARROW:
            return
        self.turns += 1
        leeway = self.plan.options.leeway(dtypes[turn])
        narrow, verdict = judge_narrow(self.factory, case, dtypes[turn], leeway)
        if verdict.diverged and self.plan.expectation_for(narrow, verdict) is None:
            self._note(narrow, verdict)
        if verdict.status == "discarded":
            why = f"{dtypes[turn]}: {verdict.reason}"
            tally.not_narrow = distinct((*tally.not_narrow, why))[:MOST_REASONS]
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
