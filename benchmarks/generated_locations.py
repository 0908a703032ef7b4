"""Does `kvfuzz locate` name the line of a fault that nobody chose?

    python -m benchmarks.generated_locations --seed 7 --count 100 -n 2 --json found.json

Each fault is drawn at random: a model (a copy of a modelling file of transformers with its caches
and masks, or one of `benchmarks/generated/decoders`), a kind, a statement that runs, a condition. A
hunt finds, shrinks and locates it. A fault that no hunt finds, or that raises, is replaced.

A line is right if it is that of the changed statement, or, where this computes nothing that
differs, the first line after it that does. Draw a fresh seed for each measurement: a locator that
is mended by the faults of one seed must be measured under another.
"""

from __future__ import annotations

import json
import multiprocessing
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click
import torch
from rich import box
from rich.console import Console
from rich.table import Table

from benchmarks.generated.judge import RIGHT, Bench, Result

EXAMPLES = 40


@click.command()
@click.option("--seed", type=int, required=True, help="Draws the faults.")
@click.option("--count", type=int, default=100, show_default=True, help="How many faults.")
@click.option("--first", type=int, default=0, help="The number of the first fault.")
@click.option("--examples", type=int, default=EXAMPLES, show_default=True, help="Cases of a hunt.")
@click.option("-n", "workers", type=int, default=1, help="Processes.")
@click.option("--only", multiple=True, help="Only these models.", metavar="MODEL")
@click.option("--json", "json_file", type=click.Path(path_type=Path), help="Write the result.")
def main(
    seed: int,
    count: int,
    first: int,
    examples: int,
    workers: int,
    only: tuple[str, ...],
    json_file: Path | None,
) -> None:
    results = []
    for result in measure(seed, range(first, first + count), examples, workers, only):
        results.append(result)
        print(f"{len(results)}/{count} {line_about(result)}", file=sys.stderr, flush=True)
        if json_file:
            text = json.dumps([asdict(one) for one in results], indent=1)
            json_file.write_text(text + "\n", encoding="utf-8")
    console = Console(width=None if sys.stdout.isatty() else 160)
    console.print(table(results))
    for line in remarks(results):
        console.print(line, soft_wrap=True, highlight=False, markup=False)


def measure(
    seed: int, numbers: Sequence[int], examples: int, workers: int, only: tuple[str, ...]
) -> Iterator[Result]:
    """Yields the result of each of the `numbers` of the faults of `seed`, as they come."""
    tasks = [(seed, number) for number in numbers]
    if workers == 1:
        _begin(examples, only)
        yield from map(_one, tasks)
        return
    context = multiprocessing.get_context("spawn")
    with context.Pool(workers, _begin, (examples, only)) as pool:
        yield from pool.imap_unordered(_one, tasks)


_benches: list[Any] = []


def _begin(examples: int, only: tuple[str, ...]) -> None:
    torch.set_num_threads(1)
    folder = tempfile.TemporaryDirectory()
    _benches[:] = [folder, Bench(Path(folder.name), examples, only)]


def _one(task: tuple[int, int]) -> Result:
    found: Result = _benches[1].result(*task)
    return found


def line_about(one: Result) -> str:
    """Returns one result in a line."""
    fault = one.fault
    return " | ".join(
        (
            f"{'unsure ' if one.unsure else ''}{one.hit}",
            f"{fault.model} {fault.file}:{fault.lines[0]} {fault.kind}, {fault.condition}",
            f"{fault.before[:90]} => {fault.becomes[:90]}".replace("\n", " "),
            f"named {one.named} {one.text[:90]}",
            f"{one.law} {one.schedule} reached {' '.join(one.reached)}",
            f"cause {one.cause}{'' if one.cause_right else ' (?)'}, suspect {one.suspect}",
        )
    )


def table(results: Sequence[Result]) -> Table:
    """Returns the counts by kind of fault."""
    columns = ("kind", "faults", "line", "reached", "function", "wrong", "unsure", "none", "cause")
    made = Table(*columns, box=box.SIMPLE_HEAD, title="Faults drawn at random")
    kinds = sorted({one.fault.kind for one in results})
    for kind in (*kinds, "all"):
        own = [one for one in results if kind in (one.fault.kind, "all")]
        sure = Counter(one.hit for one in own if not one.unsure or one.hit in RIGHT)
        unsure = [one for one in own if one.unsure and one.hit not in RIGHT]
        said = [one for one in own if one.cause and one.cause != "unknown"]
        cells = (
            len(own),
            sure["line"],
            sure["reached"],
            sure["function"],
            sure["wrong"] + sure["outside"],
            f"{len(unsure)} ({sum(one.candidate for one in unsure)} with it)",
            sure["none"],
            f"{sum(one.cause_right for one in said)}/{len(said)}",
        )
        made.add_row(kind, *map(str, cells), end_section=kind == kinds[-1])
    return made


def remarks(results: Sequence[Result]) -> list[str]:
    """Returns the shares, and what was replaced."""
    count = len(results) or 1
    said = [one for one in results if one.cause and one.cause != "unknown"]
    sure = [one for one in results if not one.unsure]
    shares = {
        "line right, or first reached": sum(one.hit in RIGHT for one in results) / count,
        "function right": sum(one.function for one in results) / count,
        "wrong line with confidence": sum(o.hit not in (*RIGHT, "none") for o in sure) / count,
        "unsure": sum(one.unsure for one in results) / count,
        "no line": sum(one.hit == "none" for one in results) / count,
        "outside the model": sum(one.hit == "outside" for one in results) / count,
        "causes right, where one is said": sum(o.cause_right for o in said) / (len(said) or 1),
    }
    replaced: Counter[str] = Counter()
    for one in results:
        replaced.update(one.replaced)
    models = len({one.fault.model for one in results})
    return [
        f"{len(results)} faults in {models} models",
        *(f"{share:6.1%} {name}" for name, share in shares.items()),
        "replaced: " + ", ".join(f"{number} {why}" for why, number in replaced.items()),
    ]


if __name__ == "__main__":
    main()
