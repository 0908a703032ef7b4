"""Let Hypothesis draw the cases of one round, and shrink the one that fails."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

import hypothesis
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis.database import DirectoryBasedExampleDatabase
from hypothesis.errors import Unsatisfiable
from hypothesis.internal.conjecture.engine import ConjectureRunner
from hypothesis.internal.conjecture.providers import HypothesisProvider

from kvfuzz.case.case import Case
from kvfuzz.case.verdict import Verdict
from kvfuzz.search.strategies import Balance, Space, cases, focuses_of

Examine = Callable[[Case], Verdict | None]

TARGETED = 200
"""The number of examples from which on a run climbs the excess."""
_PHASES = (Phase.reuse, Phase.generate, Phase.target, Phase.shrink)


def run_strategy(
    space: Space, seed: int, examples: int, examine: Examine, database: str | None = None
) -> None:
    """Call `examine` on `examples` cases of `space`, the same for the same `seed`. What it raises
    is shrunk and raised.

    Each focus of the strategy gets its share of the examples. A run of TARGETED examples or more
    has all of them drawn together, and climbs the excess of the verdicts: a fault too small for
    most cases is then found in half as many.
    """
    driver = _Driver(space, examples, examine, Balance(space, examples), examples)
    if examples >= TARGETED:
        driver.run(None, seed, examples, database)
        return
    for focus, share in _shares(focuses_of(space), seed, examples):
        driver.run(focus, derived_seed(seed, focus), share, database)


@dataclass
class _Driver:
    """Runs of one round over `space`. A case whose verdict is no evidence is drawn again, as long
    as there are `spare` ones. `passed` tells of each case of the present run whether it was
    passed over: Hypothesis may try it again, and takes another answer for a flaky test."""

    space: Space
    examples: int
    examine: Examine
    balance: Balance
    spare: int
    failed: bool = False
    passed: dict[str, bool] = field(default_factory=dict)

    def run(self, focus: str | None, seed: int, examples: int, database: str | None) -> None:
        """One Hypothesis run.

        Every setting is stated: where Hypothesis sees CI, the profile that it loads there would
        decide what is not. The seed is stated too, and wins over a profile that derandomises.
        """
        self.passed.clear()
        # What fails is kept for each focus alone: it would mean another case to another.
        folder = Path(database) / (focus or "all").replace(" ", "-") if database else None

        # Hypothesis' `seed` takes the database away, so the settings are put on top of it.
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
        def run(case: Case) -> None:
            self._case(case)

        with suppress(Unsatisfiable), _evenly():
            run()

    def _case(self, case: Case) -> None:
        if self.failed:  # shrinking may try whatever it likes
            self.examine(case)
            return
        known = repr(case)
        again = known in self.passed
        if not again:
            self.passed[known] = not self.balance.wants(case)
        if self.passed[known]:
            hypothesis.reject()
        try:
            verdict = self.examine(case)
        except BaseException:
            self.failed = True
            raise
        if verdict is None:
            return
        if verdict.status != "agreed" and self.spare and not again:
            self.spare -= 1
            self.passed[known] = True
            hypothesis.reject()
        if self.examples >= TARGETED:
            hypothesis.target(verdict.excess)


def _shares(focuses: tuple[str, ...], seed: int, examples: int) -> Iterator[tuple[str, int]]:
    """How many of `examples` each focus gets: as many as the others, and one more for those that
    the seed favours."""
    least, more = divmod(examples, len(focuses))
    for number, focus in enumerate(focuses):
        share = least + ((number - seed) % len(focuses) < more)
        if share:
            yield focus, share


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


def derived_seed(seed: int, purpose: str) -> int:
    """A seed for `purpose`, the same on every machine."""
    return int.from_bytes(hashlib.sha256(f"{seed} {purpose}".encode()).digest()[:6], "big")
