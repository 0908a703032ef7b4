"""Campaigns killed with SIGKILL at random moments and resumed: is the table that of a whole run?

    python benchmarks/resuming.py --campaigns 30

Each campaign has a seed of its own, runs on two workers, is killed a few times, each time after a
random part of the seconds that a whole run takes, and is then resumed to its end.
"""

from __future__ import annotations

import json
import random
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import click

from benchmarks.campaigns import table
from benchmarks.timing import KVFUZZ


@click.command()
@click.option("--campaigns", default=30, show_default=True)
@click.option("--kills", default=3, show_default=True)
@click.option("--operator", "operators", multiple=True, default=("append", "crop"))
def main(campaigns: int, kills: int, operators: tuple[str, ...]) -> None:
    draw = random.Random(0)
    same = finished = 0
    for seed in range(campaigns):
        words = [*KVFUZZ, "score", "zoo", "--examples", "60", "-n", "2"]
        words += [word for operator in operators for word in ("--operator", operator)]
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            started = time.perf_counter()
            _whole([*words, "--seed", str(seed)], folder / "whole")
            seconds = time.perf_counter() - started
            killed = 0
            for _ in range(kills):
                killed += _killed(
                    [*words, "--seed", str(seed), *_resume(folder / "cut")],
                    folder / "cut",
                    draw.uniform(0.2, 1) * seconds,
                )
            _whole([*words, "--seed", str(seed), *_resume(folder / "cut")], folder / "cut")
            whole, cut = (_table(folder / name / "score.json") for name in ("whole", "cut"))
            equal = whole == cut
        same, finished = same + equal, finished + 1
        print(
            f"seed {seed}: killed {killed} times, {'same' if equal else 'OTHER'} table", flush=True
        )
    print(f"{same} of {finished} tables are those of an undisturbed run")
    sys.exit(0 if same == finished else 1)


def _table(report: Path) -> list[dict[str, Any]]:
    return table(json.loads(report.read_text(encoding="utf-8")))


def _resume(folder: Path) -> list[str]:
    """Nothing can be resumed before there is a journal with a campaign in it."""
    return ["--resume"] if (folder / "score.sqlite").exists() else []


def _whole(words: list[str], folder: Path) -> None:
    done = subprocess.run(_into(words, folder), check=False, capture_output=True, text=True)
    if done.returncode not in (0, 1):
        raise click.ClickException(done.stderr or done.stdout)


def _killed(words: list[str], folder: Path, seconds: float) -> bool:
    """Run a campaign and kill it after `seconds`; whether it was still running then."""
    with subprocess.Popen(
        _into(words, folder), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    ) as process:
        try:
            process.wait(seconds)
        except subprocess.TimeoutExpired:
            process.send_signal(signal.SIGKILL)
            return True
    return False


def _into(words: list[str], folder: Path) -> list[str]:
    return [*words, "--folder", str(folder), "--json", str(folder / "score.json")]


if __name__ == "__main__":
    main()
