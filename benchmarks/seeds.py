"""Every mutant that is not equivalent must be killed under every seed and, once its kill is shrunk,
first differ where it is declared to.

python benchmarks/seeds.py --seeds 20
"""

from __future__ import annotations

import sys
from collections import Counter

import click
import torch

from mutants.campaign.result import Score
from mutants.campaign.score import score


@click.command()
@click.option("--seeds", default=20, show_default=True)
@click.option("--shrink/--no-shrink", default=False, show_default=True, help="Locate shrunk kills.")
def main(seeds: int, shrink: bool) -> None:
    torch.set_num_threads(1)
    failures = 0
    most: Counter[str] = Counter()
    for seed in range(seeds):
        result: Score = score("zoo", seed=seed, shrink=shrink)
        meant = [r for r in result.results if r.state != "equivalent"]
        elsewhere = [r.id for r in meant if shrink and r.site != r.declared_site]
        open_mutants = [f"{r.id} ({r.state})" for r in meant if r.state != "killed"]
        failures += bool(elsewhere or open_mutants or result.percent != 100)
        for r in meant:
            most[r.id] = max(most[r.id], r.ran)
        print(
            f"seed {seed:2}: {result.counts['killed']} of {len(meant)} killed, after at most "
            f"{max(r.ran for r in meant)} cases, {result.seconds:.1f} s"
            + (f"; other sites: {elsewhere or 'none'}" if shrink else "")
            + (f"; not killed: {open_mutants}" if open_mutants else ""),
            flush=True,
        )
    print("needing the most cases:", ", ".join(f"{i} {n}" for i, n in most.most_common(5)))
    sys.exit(1 if failures else 0)


if __name__ == "__main__":
    main()
