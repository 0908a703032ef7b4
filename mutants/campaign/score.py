"""The score: which mutants does the checker catch?

The cases are drawn by the fuzzer's own strategy, once, before any mutant runs, and every mutant
stops at its first kill; the case that killed it is then shrunk. The unmutated baseline runs first,
and placebos and canaries are mixed in among the mutants: if the baseline or a placebo diverges, or
a canary does not, there is no score. The clean subject is judged again after each mutant: one that
leaves it changed is invalid, and what comes after is judged in a new process; where there is none,
there is no score.
"""

from __future__ import annotations

import functools
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kvfuzz.case.environment import environment_of
from kvfuzz.errors import UsageError
from kvfuzz.search.known_divergences import Expectation
from kvfuzz.search.rounds import fresh_seed
from kvfuzz.subjects.loading import Options, load
from mutants.campaign.campaign import (
    Campaign,
    Limits,
    digest_of,
    identity_of,
)
from mutants.campaign.cases import draw_campaign, draw_decidable_cases
from mutants.campaign.journal import Journal
from mutants.campaign.judge import judge_mutant, skip_mutant
from mutants.campaign.prepared_cases import PreparedCases, check_baseline
from mutants.campaign.result import MutantOutcome, Result, Score, verdict_on
from mutants.campaign.workers import judge_in_processes
from mutants.library.registry import find, select
from mutants.mutant import ANY, Mutant

Shard = tuple[int, int]
"""K of N, counted from 1."""


def score(
    subject: str = "zoo",
    *,
    ids: Sequence[str] = (),
    operators: Sequence[str] = (),
    examples: int | None = None,
    seed: int | None = None,
    shard: Shard | None = None,
    seconds: float | None = None,
    limits: Limits | None = None,
    workers: int = 0,
    matrix: bool = False,
    shrink: bool = True,
    journal: Path | None = None,
    resume: bool = False,
    options: Options | None = None,
    progress: Callable[[Result | None, int], None] = lambda _result, _total: None,
    command: Callable[[int], str] = lambda _seed: "",
    anywhere: bool = False,
    expected: Sequence[Expectation] = (),
) -> Score:
    """Score the checker on the mutants of `subject`, with `examples` cases (default EXAMPLES)
    drawn under `seed` (default fresh; that of the campaign that is resumed).

    `ids` and `operators` restrict the mutants, and `shard` to the Kth of N parts of all; `matrix`
    runs every case on every mutant; `shrink` shrinks the kills. Mutants that have not begun when
    `seconds` have passed are timed out, and `limits` are those of one mutant. They are judged in
    `workers` processes; 0 judges in this one, which starts sooner, and which a fault may end. (With
    processes the calling script needs a `if __name__ == "__main__"`, as for all of Python's.)

    By `anywhere` the faults that fit any subject are scored in place of the subject's own. Cases
    that are `expected` to diverge without a fault are left out.

    With a `journal` what is finished is kept in that file, and with `resume` what is finished there
    is not judged again. `progress` is called with each result (None before the first) and the
    number to come in all; what `command` says gives this again under the seed is kept.

    Raises UsageError and InvalidSubject; a failed baseline, a killed placebo or a canary that lives
    gives a Score without a percentage.
    """
    _check(workers, seconds, journal, resume)
    options, started = options or Options(), time.time()
    scored, watch = select(subject, tuple(ids), tuple(operators), options.config, anywhere)
    factory = load(subject, options)

    def drawn(under: int) -> PreparedCases:
        how = {"matrix": matrix, "shrink": shrink, "limits": limits or Limits()}
        chosen = draw_campaign(factory, options, examples, under, expected, **how)
        prepared = PreparedCases(factory, chosen)
        return draw_decidable_cases(prepared) if scored[0].subject == ANY else prepared

    def identity(prepared: PreparedCases) -> dict[str, Any]:
        return identity_of(prepared.campaign, [*scored, *watch])

    prepared = drawn(fresh_seed() if seed is None else seed)
    until = started + seconds if seconds else None
    with closing(Journal(journal)) if journal else nullcontext() as kept:
        if kept and resume and seed is None:
            prepared = drawn(kept.newest(identity(prepared))["seed"])
        run = _Run(prepared, identity(prepared), scored, watch, shard, workers, until, kept, resume)
        return run.score(progress, command, started)


def control_failure(placebos: Sequence[Result], canaries: Sequence[Result]) -> str | None:
    """Why those that watch forbid a score: a placebo was killed or a canary was not, or none ran;
    None if they do not. A short run may have no case with the operation that a placebo stands
    for."""
    for result in canaries:
        if result.state != "killed":
            return f"the canary {result.id}, which nothing can miss, is {result.state}"
    ran = [result for result in placebos if result.state != "unreached"] or placebos[:1]
    for result in ran:
        if result.state != "survived":
            return f"the placebo {result.id}, which changes nothing, is {result.state}"
    return None


def interleave_controls(mutants: Sequence[Mutant], watch: Sequence[Mutant]) -> list[Mutant]:
    """`mutants` with those that `watch` spread among them evenly, one of them first."""
    found = list(mutants)
    for number, mutant in enumerate(watch):
        found.insert(number + number * len(mutants) // len(watch), mutant)
    return found


@dataclass
class _Run:
    """One run of a campaign, or of the `shard` of it, as `score` takes its arguments. `until` is in
    seconds since the epoch; `identity` and `digest` are those of the whole campaign."""

    prepared: PreparedCases
    identity: dict[str, Any]
    mutants: list[Mutant]
    watch: list[Mutant]
    shard: Shard | None
    workers: int
    until: float | None
    journal: Journal | None
    resume: bool

    def score(
        self,
        progress: Callable[[Result | None, int], None],
        command: Callable[[int], str],
        started: float,
    ) -> Score:
        first, step = (self.shard[0] - 1, self.shard[1]) if self.shard else (0, 1)
        order = [mutant.id for mutant in interleave_controls(self.mutants[first::step], self.watch)]
        finished = self._finished(order)
        to_come = [name for name in order if name not in finished]
        progress(None, len(to_come))
        reason = check_baseline(self.prepared)
        if reason is None:
            for judged in self._judged(to_come):
                finished[judged.result.id] = judged
                progress(judged.result, len(to_come))
        results, ended = _up_to_the_last([finished[name] for name in order if name in finished])
        lost = [name for name in order if name not in finished]
        if lost and reason is None:
            ended = ended or f"nothing has come back of {', '.join(lost)}"
        placebos = self._of(results, lambda mutant: mutant.placebo)
        canaries = self._of(results, lambda mutant: mutant.canary)
        return summarize(
            self.prepared.campaign,
            [result for result in results if result not in (*placebos, *canaries)],
            reason or ended or control_failure(placebos, canaries),
            self.workers,
            placebos=tuple(placebos),
            canaries=tuple(canaries),
            identity=self.identity,
            listed=tuple(mutant.id for mutant in self.mutants),
            shard=self.shard,
            seconds=time.time() - started,
            command=command(self.prepared.campaign.plan.seed),
        )

    def _of(self, results: list[Result], kind: Callable[[Mutant], bool]) -> list[Result]:
        """The results of those that watch and are of this `kind`."""
        ids = {mutant.id for mutant in self.watch if kind(mutant)}
        return [result for result in results if result.id in ids]

    @functools.cached_property
    def digest(self) -> str:
        return digest_of(self.identity)

    def _finished(self, order: list[str]) -> dict[str, MutantOutcome]:
        """What of `order` the journal has, where the campaign is resumed."""
        if self.journal is None:
            return {}
        self.journal.begin(self.identity, order, self.resume)
        known = self.journal.finished(self.digest)
        return {name: known[name] for name in order if name in known}

    def _judged(self, names: list[str]) -> Iterator[MutantOutcome]:
        """What becomes of the mutants called `names`, as it comes in. One that does not begin in
        time is not written down: it has yet to be judged."""
        begun: set[str] = set()

        def begin(name: str) -> bool:
            late = self.until is not None and time.time() >= self.until
            if late and not find(name).is_control:
                return False
            begun.add(name)
            self._keep(lambda journal: journal.note_begun(self.digest, name))
            return True

        if self.workers:
            found = judge_in_processes(self.prepared.campaign, names, self.workers, begin)
        else:
            found = _judged_here(self.prepared, names, begin)
        for judged in found:
            if judged.result.id in begun:
                self._keep(
                    functools.partial(Journal.note_judged, digest=self.digest, judged=judged)
                )
            yield judged

    def _keep(self, note: Callable[[Journal], None]) -> None:
        """Write into the journal, if there is one. One that is lost on the way costs no result."""
        if self.journal is None:
            return
        try:
            note(self.journal)
        except UsageError as lost:
            warnings.warn(f"{lost}. What is judged from now on cannot be resumed.", stacklevel=2)
            self.journal.close()
            self.journal = None


def _judged_here(
    prepared: PreparedCases, names: list[str], begin: Callable[[str], bool]
) -> Iterator[MutantOutcome]:
    """What becomes of the mutants called `names`, one after the other, in this process."""
    for name in names:
        judged = judge_mutant(prepared, find(name)) if begin(name) else skip_mutant(find(name))
        yield judged
        if judged.last is not None:
            return


def _up_to_the_last(found: list[MutantOutcome]) -> tuple[list[Result], str | None]:
    """The results up to the first after which nothing means anything, and why; all of them and
    None if there is none."""
    for index, judged in enumerate(found):
        if judged.last is not None:
            return [each.result for each in found[: index + 1]], judged.last
    return [each.result for each in found], None


def summarize(
    campaign: Campaign,
    results: Sequence[Result],
    reason: str | None,
    workers: int,
    **told: Any,
) -> Score:
    """The score of these `results`, or none for the `reason`; the rest of it is `told`."""
    options = campaign.plan.options
    return Score(
        **conclude(results, reason),
        subject=campaign.plan.subject,
        seed=campaign.plan.seed,
        cases=campaign.cases,
        matrix=campaign.matrix,
        environment={**environment_of(options.device), "workers": workers},
        calibration=options.calibration.path if options.calibration else None,
        **told,
    )


def conclude(results: Sequence[Result], reason: str | None) -> dict[str, Any]:
    """What a Score of these `results` comes to, by its fields."""
    results = sorted(results, key=lambda result: result.id)
    return {**verdict_on(results, reason), "results": tuple(results)}


def _check(workers: int, seconds: float | None, journal: Path | None, resume: bool) -> None:
    if workers < 0:
        raise UsageError(f"the number of workers should be at least 0, got {workers}")
    if seconds is not None and not seconds > 0:
        raise UsageError(f"the time limit should be above 0 seconds, got {seconds}")
    if resume and journal is None:
        raise UsageError("a campaign is resumed from its journal: name one")
