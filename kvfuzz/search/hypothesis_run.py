"""Runs Hypothesis: draws the cases of one round, up to the first that fails."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import hypothesis
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis.database import DirectoryBasedExampleDatabase
from hypothesis.errors import Unsatisfiable

from kvfuzz.case.case import Case
from kvfuzz.case.verdict import Verdict
from kvfuzz.search.hypothesis_private import independent_draws
from kvfuzz.search.long_rows import Climb, climbs, draw_climb
from kvfuzz.search.strategies import Balance, Space, cases, focuses_of

Examine = Callable[[Case], Verdict | None]
"""Runs a case and returns its verdict; raises if it diverged, returns None to stop counting."""

TARGETED = 200
"""A run of at least this many examples climbs the excess (`hypothesis.target`)."""
ATTEMPTS = 3
"""As many cases are drawn for one with long rows that proves nothing, at most."""
# Hypothesis would shrink its own random choices; `kvfuzz.search.shrink` shrinks the case itself.
_PHASES = (Phase.reuse, Phase.generate, Phase.target)


def run_strategy(
    space: Space,
    seed: int,
    examples: int,
    examine: Examine,
    database: str | None = None,
    index: int = 0,
) -> None:
    """Calls `examine` on `examples` cases of `space`, the same ones for the same `seed`, until it
    raises.

    Each focus of the strategy gets its share of the examples, in a Hypothesis run of its own. Only
    a run of TARGETED examples or more draws all focuses together and climbs the excess of the
    verdicts: that finds a fault too small for most cases in half as many. The last few examples
    have long rows, which cross boundaries in turn, from round to round: `index` is the number of
    this one.
    """
    run = DrawnRound(space, examples, examine, Balance(space, examples), examples, examples)
    long = climbs(space, index, examples)
    ordinary = examples - len(long)
    if examples >= TARGETED:
        run.draw(None, seed, ordinary, database)
    else:
        for focus, share in _shares(focuses_of(space), seed, ordinary):
            run.draw(focus, derive_seed(seed, focus), share, database)
    for climb in long:
        run.draw_long(climb, derive_seed(seed, f"long {climb.number}"))


@dataclass
class DrawnRound:
    """The cases of one round, drawn by one or several Hypothesis runs.

    A case whose verdict proves nothing is replaced by another, up to `spare` times, and one that
    diverged in a hunt that goes on up to `spare_diverged` times. `rejected` says of each case of
    the present Hypothesis run whether it was rejected; `failed` is what `examine` raised.
    """

    space: Space
    examples: int
    examine: Examine
    balance: Balance
    spare: int
    spare_diverged: int = 0
    failed: Exception | None = None
    rejected: dict[str, bool] = field(default_factory=dict)

    def draw(self, focus: str | None, seed: int, examples: int, database: str | None) -> None:
        """Runs Hypothesis once, on cases about `focus`."""
        self.rejected.clear()
        # Failing cases are saved for each focus separately: the saved choices would be decoded to
        # another case by another strategy.
        folder = Path(database) / (focus or "all").replace(" ", "-") if database else None

        # Every setting is stated, because a profile decides those that are not: where Hypothesis
        # detects CI, its profile derandomises. The decorators are in this order because `seed`
        # removes the database, which the settings on top of it put back.
        @settings(
            max_examples=examples,
            derandomize=False,
            deadline=None,
            database=DirectoryBasedExampleDatabase(folder) if folder else None,
            phases=_PHASES,
            suppress_health_check=list(HealthCheck),
            report_multiple_bugs=False,
            print_blob=False,
            verbosity=hypothesis.Verbosity.quiet,
        )
        @hypothesis.seed(seed)
        @given(cases(self.space, focus))
        def test(case: Case) -> None:
            self.examine_or_reject(case)

        # Unsatisfiable: every case was rejected, as of a subject on which no case proves anything.
        # The tally of the round reports that.
        with suppress(Unsatisfiable), independent_draws():
            test()

    def draw_long(self, climb: Climb, seed: int) -> None:
        """Examines a case with long rows; another one, a few times, if it proves nothing."""
        for attempt in range(ATTEMPTS):
            case = draw_climb(self.space, climb, derive_seed(seed, f"attempt {attempt}"))
            verdict = self.examine(case)
            if verdict is None or not self._replaces(verdict):
                return

    def examine_or_reject(self, case: Case) -> None:
        """Examines `case`, unless it unbalances the run; rejects it if its verdict proves nothing,
        so that Hypothesis draws another."""
        if self.failed is not None:
            raise self.failed  # Hypothesis runs the failing case once more, to raise its error
        # Hypothesis may run the same case twice, and reports a test that rejects it only once as
        # flaky. So the first decision stands.
        key = repr(case)
        again = key in self.rejected
        if not again:
            self.rejected[key] = not self.balance.wants(case)
        if self.rejected[key]:
            hypothesis.reject()
        try:
            verdict = self.examine(case)
        except Exception as error:
            self.failed = error
            raise
        if verdict is None:
            return
        if not again and self._replaces(verdict):
            self.rejected[key] = True
            hypothesis.reject()
        if self.examples >= TARGETED and not verdict.diverged:
            hypothesis.target(verdict.excess)

    def _replaces(self, verdict: Verdict) -> bool:
        """Returns whether another case is to be drawn for one with this verdict, and counts it."""
        left = self.spare_diverged if verdict.diverged else self.spare
        if verdict.status == "agreed" or not left:
            return False
        if verdict.diverged:
            self.spare_diverged -= 1
        else:
            self.spare -= 1
        return True


def _shares(focuses: tuple[str, ...], seed: int, examples: int) -> Iterator[tuple[str, int]]:
    """Divides `examples` equally among the focuses. `seed` chooses which of them get the rest."""
    least, more = divmod(examples, len(focuses))
    for number, focus in enumerate(focuses):
        share = least + ((number - seed) % len(focuses) < more)
        if share:
            yield focus, share


def derive_seed(seed: int, purpose: str) -> int:
    """Returns a seed for `purpose`, the same on every machine."""
    return int.from_bytes(hashlib.sha256(f"{seed} {purpose}".encode()).digest()[:6], "big")
