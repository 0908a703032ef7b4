"""How fast a campaign is: the whole library, and two workers against one.

    python benchmarks/campaigns.py

Whole processes, start-up included, of `kvfuzz score zoo`, on one and on two workers
in turn, with the same seed; the tables must be the same.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import click

KVFUZZ = [sys.executable, "-c", "from kvfuzz.cli.main import main; raise SystemExit(main())"]
TIMES = ("seconds", "witness")


@click.command()
@click.option("--repeats", default=3, show_default=True)
@click.option("--seed", default=0, show_default=True)
@click.option("--operator", "operators", multiple=True, help="This family only.")
@click.option("--shrink/--no-shrink", default=False, show_default=True)
def main(repeats: int, seed: int, operators: tuple[str, ...], shrink: bool) -> None:
    words = ["score", "zoo", "--seed", str(seed), "--shrink" if shrink else "--no-shrink"]
    words += [word for operator in operators for word in ("--operator", operator)]
    ratios, others = [], 0
    for number in range(repeats):
        (one, first), (two, second) = (_run([*words, "-n", str(n)]) for n in (1, 2))
        ratios.append(one / two)
        others += first != second
        same = "the same table" if first == second else "OTHER TABLES"
        print(
            f"run {number + 1}: {one:.1f} s, {two:.1f} s: {one / two:.2f} times; {same}", flush=True
        )
    print(f"two workers are {statistics.median(ratios):.2f} times as fast (at least 1.6 is meant)")
    sys.exit(1 if others else 0)


def _run(words: list[str]) -> tuple[float, list[dict[str, Any]]]:
    """Seconds of a campaign, and its table without times."""
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "score.json"
        started = time.perf_counter()
        command = [*KVFUZZ, *words, "--folder", folder, "--json", str(report)]
        subprocess.run(command, check=False, capture_output=True)
        seconds = time.perf_counter() - started
        return seconds, table(report)


def table(report: Path) -> list[dict[str, Any]]:
    """The mutants of a report, without what differs from run to run."""
    mutants = json.loads(report.read_text())["mutants"]
    return [{k: v for k, v in mutant.items() if k not in TIMES} for mutant in mutants]


if __name__ == "__main__":
    main()
