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
from kvfuzz.search.rounds import Plan, drawn_cases, fresh_seed
from kvfuzz.search.strategies import space_of
from kvfuzz.subjects.loading import Options, load
from kvfuzz.subjects.protocol import Factory
from mutants.campaign.bench import Bench, baseline
from mutants.campaign.campaign import (
    EXAMPLES,
    Campaign,
    Limits,
    digest_of,
    expected_of,
    identity_of,
)
from mutants.campaign.cases import telling
from mutants.campaign.journal import Journal
from mutants.campaign.judge import judged_item, not_begun
from mutants.campaign.result import Judged, Result, Score, verdict_on
from mutants.campaign.workers import judged_in_processes
from mutants.library.mutant import ANY, Mutant
from mutants.library.registry import find, select

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

    def drawn(under: int) -> Bench:
        chosen = campaign_of(factory, options, examples, under, matrix, shrink, limits, expected)
        bench = Bench(factory, chosen)
        return telling(bench) if scored[0].subject == ANY else bench

    def identity(bench: Bench) -> dict[str, Any]:
        return identity_of(bench.campaign, [*scored, *watch])

    bench = drawn(fresh_seed() if seed is None else seed)
    until = started + seconds if seconds else None
    with closing(Journal(journal)) if journal else nullcontext() as kept:
        if kept and resume and seed is None:
            bench = drawn(kept.newest(identity(bench))["seed"])
        run = _Run(bench, identity(bench), scored, watch, shard, workers, until, kept, resume)
        return run.score(progress, command, started)


def campaign_of(
    factory: Factory,
    options: Options,
    examples: int | None,
    seed: int,
    matrix: bool = False,
    shrink: bool = True,
    limits: Limits | None = None,
    expected: Sequence[Expectation] = (),
) -> Campaign:
    """The campaign on `factory`, with its cases drawn."""
    if examples is not None and examples < 1:
        raise UsageError(f"examples should be at least 1, got {examples}")
    plan = Plan(
        factory.name,
        options,
        space_of(factory),
        seed,
        examples or EXAMPLES,
        until=None,
        expected=tuple(expected),
    )
    cases = drawn_cases(plan.space, plan.seed, plan.examples or EXAMPLES)
    met = tuple(case for case in cases if not expected_of(plan, case))
    return Campaign(plan, met, matrix, shrink, limits or Limits())


def prepared_bench(
    subject: str,
    options: Options,
    examples: int | None,
    seed: int | None,
    matrix: bool = False,
    shrink: bool = True,
    limits: Limits | None = None,
    expected: Sequence[Expectation] = (),
) -> Bench:
    """The bench for `subject`, with its cases drawn."""
    factory = load(subject, options)
    under = fresh_seed() if seed is None else seed
    drawn = campaign_of(factory, options, examples, under, matrix, shrink, limits, expected)
    return Bench(factory, drawn)


def watched_over(placebos: Sequence[Result], canaries: Sequence[Result]) -> str | None:
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


def mixed(mutants: Sequence[Mutant], watch: Sequence[Mutant]) -> list[Mutant]:
    """`mutants` with those that `watch` spread among them evenly, one of them first."""
    found = list(mutants)
    for number, mutant in enumerate(watch):
        found.insert(number + number * len(mutants) // len(watch), mutant)
    return found


@dataclass
class _Run:
    """One run of a campaign, or of the `shard` of it, as `score` takes its arguments. `until` is in
    seconds since the epoch; `identity` and `digest` are those of the whole campaign."""

    bench: Bench
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
        order = [mutant.id for mutant in mixed(self.mutants[first::step], self.watch)]
        finished = self._finished(order)
        to_come = [name for name in order if name not in finished]
        progress(None, len(to_come))
        reason = baseline(self.bench)
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
        return summed_up(
            self.bench.campaign,
            [result for result in results if result not in (*placebos, *canaries)],
            reason or ended or watched_over(placebos, canaries),
            self.workers,
            placebos=tuple(placebos),
            canaries=tuple(canaries),
            identity=self.identity,
            listed=tuple(mutant.id for mutant in self.mutants),
            shard=self.shard,
            seconds=time.time() - started,
            command=command(self.bench.campaign.plan.seed),
        )

    def _of(self, results: list[Result], kind: Callable[[Mutant], bool]) -> list[Result]:
        """The results of those that watch and are of this `kind`."""
        ids = {mutant.id for mutant in self.watch if kind(mutant)}
        return [result for result in results if result.id in ids]

    @functools.cached_property
    def digest(self) -> str:
        return digest_of(self.identity)

    def _finished(self, order: list[str]) -> dict[str, Judged]:
        """What of `order` the journal has, where the campaign is resumed."""
        if self.journal is None:
            return {}
        self.journal.begin(self.identity, order, self.resume)
        known = self.journal.finished(self.digest)
        return {name: known[name] for name in order if name in known}

    def _judged(self, names: list[str]) -> Iterator[Judged]:
        """What becomes of the mutants called `names`, as it comes in. One that does not begin in
        time is not written down: it has yet to be judged."""
        begun: set[str] = set()

        def begin(name: str) -> bool:
            late = self.until is not None and time.time() >= self.until
            if late and not find(name).watches:
                return False
            begun.add(name)
            self._keep(lambda journal: journal.note_begun(self.digest, name))
            return True

        if self.workers:
            found = judged_in_processes(self.bench.campaign, names, self.workers, begin)
        else:
            found = _judged_here(self.bench, names, begin)
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


def _judged_here(bench: Bench, names: list[str], begin: Callable[[str], bool]) -> Iterator[Judged]:
    """What becomes of the mutants called `names`, one after the other, in this process."""
    for name in names:
        judged = judged_item(bench, find(name)) if begin(name) else not_begun(find(name))
        yield judged
        if judged.last is not None:
            return


def _up_to_the_last(found: list[Judged]) -> tuple[list[Result], str | None]:
    """The results up to the first after which nothing means anything, and why; all of them and
    None if there is none."""
    for index, judged in enumerate(found):
        if judged.last is not None:
            return [each.result for each in found[: index + 1]], judged.last
    return [each.result for each in found], None


def summed_up(
    campaign: Campaign,
    results: Sequence[Result],
    reason: str | None,
    workers: int,
    **told: Any,
) -> Score:
    """The score of these `results`, or none for the `reason`; the rest of it is `told`."""
    options = campaign.plan.options
    return Score(
        **concluded(results, reason),
        subject=campaign.plan.subject,
        seed=campaign.plan.seed,
        cases=campaign.cases,
        matrix=campaign.matrix,
        environment={**environment_of(options.device), "workers": workers},
        calibration=options.calibration.path if options.calibration else None,
        **told,
    )


def concluded(results: Sequence[Result], reason: str | None) -> dict[str, Any]:
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
