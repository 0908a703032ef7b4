"""Scores the checker: which mutants does it kill?

All cases are drawn once, before any mutant runs, by the strategy of a hunt. The unmutated subject
runs first. Then each mutant runs until a case kills it, and that case is shrunk. Controls run among
the mutants: placebos, which change nothing and must survive, and canaries, which must be killed.
There is no score if the unmutated subject diverges or a control fails.

After each mutant the clean subject is judged again. A mutant that left it changed is invalid; with
worker processes the next mutant gets a new process, without them there is no score.
"""

from __future__ import annotations

import functools
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypedDict, Unpack

from kvfuzz.case.environment import environment_of
from kvfuzz.errors import UsageError
from kvfuzz.search.known_divergences import Expectation
from kvfuzz.search.rounds import fresh_seed
from kvfuzz.subjects.loading import Options, load
from mutants.campaign.campaign import Limits, digest_of, identity_of
from mutants.campaign.cases import draw_campaign, draw_decidable_cases
from mutants.campaign.journal import Journal
from mutants.campaign.judge import judge_mutant, skip_mutant
from mutants.campaign.prepared_cases import PreparedCases, check_baseline
from mutants.campaign.result import MutantOutcome, Result, Score, conclude
from mutants.campaign.workers import judge_in_processes
from mutants.library.registry import find, select
from mutants.mutant import ANY, Mutant

Shard = tuple[int, int]
"""K of N, counted from 1."""


@dataclass(frozen=True)
class ScoreSettings:
    """How to score, apart from the subject. Raises UsageError for values that make no sense.

    Runs `examples` cases (default EXAMPLES), drawn under `seed` (default: a fresh one, or that of
    the campaign that is resumed). `mutants` (ids) and `operators` restrict the mutants; `shard`
    (k, n) judges part k of n. `anywhere` scores the generic mutants in place of the subject's own.
    Known divergences, `expected`, are left out of the cases.

    `matrix` runs every case on every mutant; otherwise a mutant stops at its first kill. `shrink`
    shrinks the kills. `limits` are those of one mutant. Mutants that have not begun after `seconds`
    are timed out.

    `workers` processes judge the mutants. With 0 this process does: that starts sooner, but a
    mutant may end it. With processes the calling script needs `if __name__ == "__main__":`.

    Finished mutants are written to the file `journal`; with `resume` they are not judged again.
    `announce` is called with the ids of the mutants and controls to be judged, and `progress` with
    each result (None before the first) and the number of them.
    `command` returns the command line that repeats this run under a seed, for the reports.
    """

    mutants: Sequence[str] = ()
    operators: Sequence[str] = ()
    examples: int | None = None
    seed: int | None = None
    shard: Shard | None = None
    seconds: float | None = None
    limits: Limits = field(default_factory=Limits)
    workers: int = 0
    matrix: bool = False
    shrink: bool = False
    journal: Path | None = None
    resume: bool = False
    options: Options = field(default_factory=Options)
    announce: Callable[[Sequence[str]], None] = lambda _ids: None
    progress: Callable[[Result | None, int], None] = lambda _result, _total: None
    command: Callable[[int], str] = lambda _seed: ""
    anywhere: bool = False
    expected: Sequence[Expectation] = ()

    def __post_init__(self) -> None:
        if self.workers < 0:
            raise UsageError(f"the number of workers should be at least 0, got {self.workers}")
        if self.seconds is not None and not self.seconds > 0:
            raise UsageError(f"the time limit should be above 0 seconds, got {self.seconds}")
        if self.resume and self.journal is None:
            raise UsageError("to resume a campaign, name its journal")


class ScoreKeywords(TypedDict, total=False):
    """The fields of ScoreSettings, as the keyword arguments of `score`. None means the default."""

    mutants: Sequence[str]
    ids: Sequence[str]
    operators: Sequence[str]
    examples: int | None
    seed: int | None
    shard: Shard | None
    seconds: float | None
    limits: Limits | None
    workers: int
    matrix: bool
    shrink: bool
    journal: Path | None
    resume: bool
    options: Options | None
    announce: Callable[[Sequence[str]], None]
    progress: Callable[[Result | None, int], None]
    command: Callable[[int], str]
    anywhere: bool
    expected: Sequence[Expectation]


FORMER_NAMES = {"ids": "mutants"}
"""Keywords of `score` that have a new name; they are accepted for one more release."""


def score(subject: str = "zoo", **settings: Unpack[ScoreKeywords]) -> Score:
    """Scores the checker on the mutants of `subject`.

    The keyword arguments are the fields of ScoreSettings. A failed baseline or control gives a
    Score without a percentage. Raises UsageError and InvalidSubject.
    """
    given: dict[str, Any] = {name: value for name, value in settings.items() if value is not None}
    for former, name in FORMER_NAMES.items():
        if former in given:
            message = f"the argument {former!r} of score is now called {name!r}"
            warnings.warn(message, DeprecationWarning, stacklevel=2)
            given.setdefault(name, given.pop(former))
    return _score(subject, ScoreSettings(**given))


def _score(subject: str, settings: ScoreSettings) -> Score:
    started, options = time.time(), settings.options
    scored, controls = select(
        subject,
        tuple(settings.mutants),
        tuple(settings.operators),
        options.config,
        settings.anywhere,
    )
    factory = load(subject, options)

    def draw(seed: int) -> PreparedCases:
        campaign = draw_campaign(
            factory, options, settings.examples, seed, settings.expected,
            matrix=settings.matrix, shrink=settings.shrink, limits=settings.limits,
        )  # fmt: skip
        prepared = PreparedCases(factory, campaign)
        return draw_decidable_cases(prepared) if scored[0].subject == ANY else prepared

    prepared = draw(fresh_seed() if settings.seed is None else settings.seed)
    with closing(Journal(settings.journal)) if settings.journal else nullcontext() as journal:
        if journal and settings.resume and settings.seed is None:
            identity = identity_of(prepared.campaign, [*scored, *controls])
            prepared = draw(journal.newest(identity)["seed"])
        identity = identity_of(prepared.campaign, [*scored, *controls])
        return _Run(prepared, identity, scored, controls, settings, journal, started).score()


def control_failure(placebos: Sequence[Result], canaries: Sequence[Result]) -> str | None:
    """Returns why the controls forbid a score, or None.

    A canary was not killed, or a placebo was killed. A placebo may be unreached, because a short
    campaign may lack the operation that it wraps, but not all of them.
    """
    for result in canaries:
        if result.state != "killed":
            return f"the canary {result.id} must be killed, but is {result.state}"
    ran = [result for result in placebos if result.state != "unreached"] or placebos[:1]
    for result in ran:
        if result.state != "survived":
            return f"the placebo {result.id} changes nothing, but is {result.state}"
    return None


def interleave_controls(mutants: Sequence[Mutant], controls: Sequence[Mutant]) -> list[Mutant]:
    """Returns `mutants` with `controls` spread evenly among them, one control first."""
    found = list(mutants)
    for number, mutant in enumerate(controls):
        found.insert(number + number * len(mutants) // len(controls), mutant)
    return found


@dataclass
class _Run:
    """One run of a campaign or of one shard. `identity` is that of the whole campaign; `started` is
    in seconds since the epoch."""

    prepared: PreparedCases
    identity: dict[str, Any]
    mutants: list[Mutant]
    controls: list[Mutant]
    settings: ScoreSettings
    journal: Journal | None
    started: float

    def score(self) -> Score:
        shard = self.settings.shard
        first, step = (shard[0] - 1, shard[1]) if shard else (0, 1)
        ordered = interleave_controls(self.mutants[first::step], self.controls)
        order = [mutant.id for mutant in ordered]
        outcomes = self._read_journal(order)
        waiting = [name for name in order if name not in outcomes]
        self.settings.announce(waiting)
        self.settings.progress(None, len(waiting))
        reason = check_baseline(self.prepared)
        if reason is None:
            for outcome in self._judge(waiting):
                outcomes[outcome.result.id] = outcome
                self.settings.progress(outcome.result, len(waiting))
        results, unsound = _up_to_unsound([outcomes[name] for name in order if name in outcomes])
        missing = [name for name in order if name not in outcomes]
        if missing and unsound is None:
            unsound = f"no result for {', '.join(missing)}"
        return self._summarize(results, reason or unsound)

    def _read_journal(self, order: list[str]) -> dict[str, MutantOutcome]:
        """Returns the outcomes of `order` that the journal has, if the campaign is resumed."""
        if self.journal is None:
            return {}
        resumes = self.settings.resume and self.journal.has_campaigns()
        self.journal.begin(self.identity, order, self.settings.resume)
        known = self.journal.finished(digest_of(self.identity))
        finished = {name: known[name] for name in order if name in known}
        if resumes and not finished:
            message = f"{self.journal.path} has no results of this campaign: all mutants are judged"
            warnings.warn(message, stacklevel=2)
        return finished

    def _judge(self, names: list[str]) -> Iterator[MutantOutcome]:
        """Judges the mutants called `names`, and yields each outcome when it is known. A mutant
        that does not begin in time is not written to the journal, so that it can be resumed."""
        begun: set[str] = set()
        digest, seconds = digest_of(self.identity), self.settings.seconds

        def begin(name: str) -> bool:
            late = seconds is not None and time.time() >= self.started + seconds
            if late and not find(name).is_control:
                return False
            begun.add(name)
            self._write(lambda journal: journal.note_begun(digest, name))
            return True

        if self.settings.workers:
            campaign, workers = self.prepared.campaign, self.settings.workers
            outcomes = judge_in_processes(campaign, names, workers, begin)
        else:
            outcomes = _judge_here(self.prepared, names, begin)
        for outcome in outcomes:
            if outcome.result.id in begun:
                self._write(functools.partial(_note_judged, digest=digest, outcome=outcome))
            yield outcome

    def _write(self, note: Callable[[Journal], None]) -> None:
        """Writes into the journal, if there is one. Losing it costs no result, only a warning."""
        if self.journal is None:
            return
        try:
            note(self.journal)
        except UsageError as lost:
            warnings.warn(f"{lost}. Later results cannot be resumed.", stacklevel=2)
            self.journal.close()
            self.journal = None

    def _summarize(self, results: list[Result], reason: str | None) -> Score:
        campaign, settings = self.prepared.campaign, self.settings
        placebo_ids = {mutant.id for mutant in self.controls if mutant.placebo}
        canary_ids = {mutant.id for mutant in self.controls if mutant.canary}
        placebos = tuple(result for result in results if result.id in placebo_ids)
        canaries = tuple(result for result in results if result.id in canary_ids)
        scored = [each for each in results if each.id not in placebo_ids | canary_ids]
        calibration = settings.options.calibration
        environment = environment_of(settings.options.device)
        return Score(
            **conclude(scored, reason or control_failure(placebos, canaries)),
            subject=campaign.plan.subject,
            seed=campaign.plan.seed,
            cases=campaign.cases,
            matrix=campaign.matrix,
            environment={**environment, "workers": settings.workers},
            calibration=calibration.path if calibration else None,
            placebos=placebos,
            canaries=canaries,
            identity=self.identity,
            listed=tuple(mutant.id for mutant in self.mutants),
            shard=settings.shard,
            seconds=time.time() - self.started,
            command=settings.command(campaign.plan.seed),
        )


def _note_judged(journal: Journal, digest: str, outcome: MutantOutcome) -> None:
    journal.note_judged(digest, outcome)


def _judge_here(
    prepared: PreparedCases, names: list[str], begin: Callable[[str], bool]
) -> Iterator[MutantOutcome]:
    """Judges the mutants called `names` in this process, up to one that leaves it unsound."""
    for name in names:
        outcome = judge_mutant(prepared, find(name)) if begin(name) else skip_mutant(find(name))
        yield outcome
        if outcome.why_last is not None:
            return


def _up_to_unsound(outcomes: list[MutantOutcome]) -> tuple[list[Result], str | None]:
    """Returns the results up to the first that makes later ones wrong, and why."""
    for index, outcome in enumerate(outcomes):
        if outcome.why_last is not None:
            return [each.result for each in outcomes[: index + 1]], outcome.why_last
    return [outcome.result for outcome in outcomes], None
