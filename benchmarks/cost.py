"""What the score costs, as a ratio to the bare passes that it cannot avoid.

    python benchmarks/cost.py

The library in first-kill mode, start-up apart (cases drawn, uncached logits known), without
shrinking, against one bare cached run per mutant of the case that kills it. Both sides run in turn
in one process, on one thread; medians over the repeats. `python -m benchmarks` measures the noise
and the fuzz loop.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from contextlib import suppress

import click
import torch

from kvfuzz.case.case import Case
from kvfuzz.subjects.loading import Options
from kvfuzz.subjects.protocol import Subject
from kvfuzz.subjects.run import Refused, run_cached
from mutants.campaign.cases import prepare_cases
from mutants.campaign.run import check_unchanged, run_mutant
from mutants.library.registry import select

SEEDS = 5


@click.command()
@click.option("--subject", default="zoo", show_default=True)
@click.option("--repeats", default=7, show_default=True)
def main(subject: str, repeats: int) -> None:
    torch.set_num_threads(1)
    for seed in range(SEEDS):
        _score(subject, seed, repeats)


def _score(subject: str, seed: int, repeats: int) -> None:
    """The ratio depends on the seed: on how many cases a mutant meets before its kill. Mutants that
    are equivalent meet all cases and have no kill to compare with; they are left out."""
    prepared = prepare_cases(subject, Options(), None, seed, shrink=False)
    scored = [mutant for mutant in select(subject)[0] if not mutant.equivalent]
    found = [(mutant, run_mutant(prepared, mutant)) for mutant in scored]
    killed = [(mutant, result) for mutant, result in found if result.killed_by is not None]
    kills = [prepared.reference(result.killed_by or 0, mutant) for mutant, result in killed]
    met = sum(result.ran for _, result in found)
    label = f"score {subject}, seed {seed}: {len(killed)} of {len(scored)} mutants, {met} cases met"

    def bare() -> None:
        for item in kills:
            _cached(item.subject, item.case)

    _print(
        label, _ratios(lambda: [run_mutant(prepared, mutant) for mutant in scored], bare, repeats)
    )
    looked_after = _ratios(
        lambda: [check_unchanged(prepared, m, run_mutant(prepared, m)) for m in scored],
        bare,
        repeats,
    )
    _print("  and with the clean decoder judged again after each", looked_after)


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


def _cached(subject: Subject, case: Case) -> None:
    with suppress(Refused):
        run_cached(subject, case)


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
