"""Every mutant must be killed under every seed, and first differ where it is declared to.

python benchmarks/seeds.py --seeds 20
"""

from __future__ import annotations

import sys
from collections import Counter

import click
import torch

from mutants.result import Score
from mutants.score import score


@click.command()
@click.option("--seeds", default=20, show_default=True)
@click.option("--shrink/--no-shrink", default=False, show_default=True, help="Locate shrunk kills.")
def main(seeds: int, shrink: bool) -> None:
    torch.set_num_threads(1)
    failures = 0
    latest: Counter[str] = Counter()
    for seed in range(seeds):
        result: Score = score("zoo", seed=seed, shrink=shrink)
        elsewhere = [r.id for r in result.results if r.site != r.declared_site]
        open_mutants = [f"{r.id} ({r.state})" for r in result.results if r.state != "killed"]
        failures += bool(elsewhere or open_mutants or result.percent != 100)
        for r in result.results:
            latest[r.id] = max(latest[r.id], r.killed_by or 0)
        last = max(r.killed_by or 0 for r in result.results)
        print(
            f"seed {seed:2}: {result.counts['killed']} of {len(result.results)} killed, the last "
            f"by case {last}, {result.seconds:.1f} s; other sites: {elsewhere or 'none'}"
            + (f"; not killed: {open_mutants}" if open_mutants else ""),
            flush=True,
        )
    print("needing the most cases:", ", ".join(f"{i} {n}" for i, n in latest.most_common(5)))
    sys.exit(1 if failures else 0)


if __name__ == "__main__":
    main()
