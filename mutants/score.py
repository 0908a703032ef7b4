"""The score: which mutants does the checker catch?

The cases are drawn by the fuzzer's own strategy, once, before any mutant runs. Every mutant meets
them in the same order and stops at its first kill; the case that killed it is then shrunk. The
unmutated baseline and the placebos run first: if one of them diverges there is no score. Nor is
there one if a mutant leaves the decoder changed: the clean one is judged again after each.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures.process import BrokenProcessPool
from dataclasses import replace

from kvfuzz.counterexample import environment_of
from kvfuzz.errors import UsageError
from kvfuzz.expectations import Expectation
from kvfuzz.loading import Options, load
from kvfuzz.parallel import pool
from kvfuzz.rounds import Plan, drawn_cases, fresh_seed
from kvfuzz.strategies import space_of
from mutants.anywhere.drawing import telling
from mutants.bench import Bench, Campaign, Unsound, baseline, judged, left_changed
from mutants.mutant import ANY, Mutant
from mutants.registry import find, select
from mutants.result import NOT_KILLED, Result, Score, counted, percent_killed
from mutants.witnessing import with_witness

EXAMPLES = 200
SECONDS_PER_MUTANT = 60.0


def score(
    subject: str = "zoo",
    *,
    ids: Sequence[str] = (),
    operators: Sequence[str] = (),
    examples: int | None = None,
    seed: int | None = None,
    seconds: float | None = None,
    seconds_per_mutant: float = SECONDS_PER_MUTANT,
    workers: int = 1,
    matrix: bool = False,
    shrink: bool = True,
    options: Options | None = None,
    progress: Callable[[Result | None, int], None] | None = None,
    command: str = "",
    anywhere: bool = False,
    expected: Sequence[Expectation] = (),
) -> Score:
    """Score the checker on the mutants of `subject`, with `examples` cases (default EXAMPLES)
    drawn under `seed` (default fresh), in `workers` processes.

    `ids` and `operators` restrict the mutants; `matrix` runs every case on every mutant; `shrink`
    shrinks the kills. Mutants that have not begun when `seconds` have passed are timed out, and
    so is one that takes over `seconds_per_mutant`. `progress` is called with each result (None
    before the first) and the number to come in all; `command`, what gives this again, is kept.
    By `anywhere` the faults that fit any subject are scored in place of the subject's own. Cases
    that are `expected` to diverge without a fault are left out.
    Raises UsageError and InvalidSubject; a failed baseline or a killed placebo gives a Score
    without a percentage.
    """
    _check_limits(examples, seconds, workers)
    options = options or Options()
    scored, placebos = select(subject, tuple(ids), tuple(operators), options.config, anywhere)
    bench = prepared_bench(
        *(subject, options, examples, seed, seconds, seconds_per_mutant, matrix, shrink),
        expected=expected,
    )
    started = time.time()
    if scored[0].subject == ANY:
        bench = telling(bench)
    if progress is not None:
        progress(None, len(scored))
    reason, watched = baseline(bench), []
    for placebo in () if reason else placebos:
        watched.append(judged(bench, placebo))
        reason = reason or left_changed(bench, placebo, watched[-1])
    reason = reason or cry_of_wolf(watched)
    results: list[Result] = []
    for result, changed in () if reason else _results(bench, scored, workers):
        results.append(result)
        if changed is not None:
            reason = changed
            break
        if progress is not None:
            progress(result, len(scored))
    return _summed_up(bench, results, watched, reason, time.time() - started, command)


def prepared_bench(
    subject: str,
    options: Options,
    examples: int | None,
    seed: int | None,
    seconds: float | None = None,
    seconds_per_mutant: float = SECONDS_PER_MUTANT,
    matrix: bool = False,
    shrink: bool = True,
    expected: Sequence[Expectation] = (),
) -> Bench:
    """The bench for `subject`, with its cases drawn."""
    factory = load(subject, options)
    plan = Plan(
        factory.name,
        options,
        space_of(factory),
        fresh_seed() if seed is None else seed,
        examples or EXAMPLES,
        time.time() + seconds if seconds else None,
        expected=tuple(expected),
    )
    cases = tuple(drawn_cases(plan.space, plan.seed, plan.examples or EXAMPLES))
    return Bench(factory, Campaign(plan, cases, matrix, shrink, seconds_per_mutant))


def cry_of_wolf(watched: Sequence[Result]) -> str | None:
    """Why placebos forbid a score: one was killed, or none ran; None if they do not. A short run
    may have no case with the operation that one of them stands for."""
    ran = [result for result in watched if result.state != "unreached"] or watched[:1]
    for result in ran:
        if result.state != "survived":
            return f"the placebo {result.id}, which changes nothing, is {result.state}"
    return None


Judged = tuple[Result, str | None]
"""What became of a mutant, and why nothing after it means anything, if so."""


def _results(bench: Bench, scored: list[Mutant], workers: int) -> Iterator[Judged]:
    """One result per mutant, in order."""
    if workers == 1:
        for mutant in scored:
            yield _judged_in_time(bench, mutant)
        return
    orphans = []
    with pool(workers) as executor:
        futures = [executor.submit(_judged_in_worker, bench.campaign, m.id) for m in scored]
        for mutant, future in zip(scored, futures, strict=True):
            try:
                yield future.result()
            except BrokenProcessPool:
                orphans.append(mutant)
    for mutant in orphans:
        yield _judged_alone(bench.campaign, mutant)


def _judged_in_time(bench: Bench, mutant: Mutant) -> Judged:
    """The result of `mutant`, or `timed_out` if the campaign's time is over."""
    if bench.campaign.plan.overdue:
        late = "the campaign's time is over"
        return Result(mutant.id, mutant.operator, "timed_out", reason=late), None
    try:
        result = with_witness(bench, mutant, judged(bench, mutant))
    except Unsound as unsound:
        return Result(mutant.id, mutant.operator, "invalid", reason=str(unsound)), str(unsound)
    return result, left_changed(bench, mutant, result)


_BENCHES: dict[int, Bench] = {}


def _judged_in_worker(campaign: Campaign, mutant_id: str) -> Judged:
    """In a worker process: one bench is kept for all the mutants that it judges."""
    plan = campaign.plan
    if plan.seed not in _BENCHES:
        _BENCHES[plan.seed] = Bench(load(plan.subject, plan.options), campaign)
    return _judged_in_time(_BENCHES[plan.seed], find(mutant_id))


def _judged_alone(campaign: Campaign, mutant: Mutant) -> Judged:
    """A mutant whose pool died, in a process of its own, so that only the one that killed the
    pool is blamed."""
    with pool(1) as executor:
        try:
            return executor.submit(_judged_in_worker, campaign, mutant.id).result()
        except BrokenProcessPool:
            died = "its process died"
            return Result(mutant.id, mutant.operator, "loud", reason=died), None


def _summed_up(
    bench: Bench,
    results: list[Result],
    watched: list[Result],
    reason: str | None,
    seconds: float,
    command: str,
) -> Score:
    results = sorted(results, key=lambda result: result.id)
    counts = counted(results)
    percent = None if reason else percent_killed(counts)
    if percent is None:
        verdict, reason = "inconclusive", reason or "no mutant could be decided"
    else:
        verdict = "survived" if any(counts[state] for state in NOT_KILLED) else "killed"
    calibration = bench.campaign.plan.options.calibration
    return Score(
        verdict=verdict,
        percent=percent,
        subject=bench.factory.name,
        seed=bench.campaign.plan.seed,
        cases=bench.campaign.cases,
        results=tuple(results),
        placebos=tuple(replace(result, witness=None) for result in watched),
        matrix=bench.campaign.matrix,
        reason=reason,
        seconds=seconds,
        counts=counts,
        environment=environment_of(bench.campaign.plan.options.device),
        command=command,
        calibration=calibration.path if calibration else None,
    )


def _check_limits(examples: int | None, seconds: float | None, workers: int) -> None:
    if examples is not None and examples < 1:
        raise UsageError(f"examples should be at least 1, got {examples}")
    if workers < 1:
        raise UsageError(f"the number of workers should be at least 1, got {workers}")
    if seconds is not None and not seconds > 0:
        raise UsageError(f"the time limit should be above 0 seconds, got {seconds}")
