"""What the fuzz loop and the score cost, as ratios to the bare passes that they cannot avoid.

    python benchmarks/cost.py

Both sides of a ratio run in turn in one process, on one thread; medians over the repeats.

- fuzz: a hunt (Hypothesis draws, models are built, both paths run, verdicts are made) against the
  bare passes of the same cases: one uncached and one stepwise cached run of models already built.
- score: the whole library in first-kill mode, cases drawn and uncached logits known, without
  shrinking, against one bare cached run per mutant of the case that kills it.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable

import click
import torch

from kvfuzz.case import Case
from kvfuzz.hunt import fuzz
from kvfuzz.loading import Options, load
from kvfuzz.rounds import drawn_cases
from kvfuzz.strategies import space_of
from kvfuzz.subject import Subject
from mutants.bench import judged
from mutants.registry import select
from mutants.score import prepared_bench

SEEDS = 5


@click.command()
@click.option("--subject", default="zoo", show_default=True)
@click.option("--examples", default=200, show_default=True)
@click.option("--repeats", default=7, show_default=True)
def main(subject: str, examples: int, repeats: int) -> None:
    torch.set_num_threads(1)
    factory = load(subject)
    space = space_of(factory)
    built = [(factory.subject(case), case) for case in drawn_cases(space, 0, examples)]
    fuzzing = _ratios(
        lambda: fuzz(factory, examples=examples, seed=0),
        lambda: [_bare(item, case) for item, case in built],
        repeats,
    )
    _print(f"fuzz {subject}, {examples} cases", fuzzing)
    for seed in range(SEEDS if subject.startswith("zoo") else 0):
        _score(subject, seed, repeats)


def _score(subject: str, seed: int, repeats: int) -> None:
    """The ratio depends on the seed: on how long the cases are that a mutant meets before its
    kill."""
    bench = prepared_bench(subject, Options(), None, seed, shrink=False)
    scored, _ = select(subject)
    results = [judged(bench, mutant) for mutant in scored]
    kills = [bench.prepared(result.killed_by or 0) for result in results]
    scoring = _ratios(
        lambda: [judged(bench, mutant) for mutant in scored],
        lambda: [_cached(item.subject, item.case) for item in kills],
        repeats,
    )
    met = sum(result.ran for result in results)
    _print(f"score {subject}, seed {seed}: {len(scored)} mutants meet {met} cases", scoring)


def _ratios(
    ours: Callable[[], object], bare: Callable[[], object], repeats: int
) -> list[tuple[float, float]]:
    """Seconds of both sides, run in turn."""
    ours(), bare()
    return [(_seconds(ours), _seconds(bare)) for _ in range(repeats)]


def _seconds(action: Callable[[], object]) -> float:
    started = time.perf_counter()
    action()
    return time.perf_counter() - started


@torch.no_grad()
def _bare(subject: Subject, case: Case) -> None:
    subject.uncached(torch.tensor(case.tokens))
    _cached(subject, case)


@torch.no_grad()
def _cached(subject: Subject, case: Case) -> None:
    tokens = torch.tensor(case.tokens)
    cache = subject.new_cache(case.batch)
    for step in case.steps():
        _, cache = subject.cached(tokens[:, step.start : step.stop], cache)


def _print(label: str, pairs: list[tuple[float, float]]) -> None:
    ratios = sorted(ours / bare for ours, bare in pairs)
    ours, bare = (statistics.median(side) for side in zip(*pairs, strict=True))
    print(
        f"{label}: {statistics.median(ratios):.2f} times the bare passes "
        f"({ratios[0]:.2f} to {ratios[-1]:.2f}; {ours:.2f} s against {bare:.2f} s)",
        flush=True,
    )


if __name__ == "__main__":
    main()
