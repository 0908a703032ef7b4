"""Does `kvfuzz locate` name the line of a fault in a real model?

    python benchmarks/locating.py                          # the whole table
    python benchmarks/locating.py --only llama --json locating-result.json

Each fault of `tests/quality/injected/faults.py` is put at a known line of a copy of the modeling
code of transformers 5.24.0, its cache and mask code included. `locate` should name that line or the
first that the fault reaches: the first whose value differs from the same run without the fault, or
the first of these that the uncached path runs too.

Exit code 1 if fewer than 90 % are hit, if a reported line is outside the model, or if a fault does
not show.
"""

from __future__ import annotations

import json
import sys
import tempfile
import time
from collections import Counter
from dataclasses import asdict, dataclass
from pathlib import Path

import click
import torch
from rich import box
from rich.console import Console
from rich.progress import track
from rich.table import Table

sys.path.insert(0, str(Path(__file__).parents[1]))

from tests.quality.injected.bench import Bench, Injected
from tests.quality.injected.copies import RELEASE, installed_release
from tests.quality.injected.faults import ARCHITECTURES, FAULTS, Fault

LEAST = 0.9
HIT = ("injected", "reached")


@dataclass
class Row:
    """The result for one fault; `problem` says what went wrong in the benchmark itself."""

    fault: str
    kind: str
    path: str
    injected: str
    reached: str
    reported: str = ""
    text: str = ""
    site: str = ""
    cause: str = ""
    suspect: str = ""
    hit: str = "none"
    problem: str = ""
    seconds: float = 0.0
    cost: float | None = None


@click.command()
@click.option("--only", multiple=True, help="Faults whose name begins so.", metavar="NAME")
@click.option("--json", "json_file", type=click.Path(path_type=Path), help="Write the result.")
def main(only: tuple[str, ...], json_file: Path | None) -> None:
    if installed_release() != RELEASE:
        raise click.UsageError(f"needs transformers {RELEASE}, got {installed_release()}")
    torch.set_num_threads(1)
    faults = [fault for fault in FAULTS if not only or fault.name.startswith(only)]
    with tempfile.TemporaryDirectory() as folder:
        bench = Bench(Path(folder))
        steps = track(faults, "locating", console=Console(stderr=True))
        rows = [row(bench, fault) for fault in steps]
    console = Console(width=None if sys.stdout.isatty() else 200)
    console.print(table(rows))
    for line in remarks(rows):
        console.print(line, soft_wrap=True, highlight=False, markup=False)
    if json_file:
        data = [asdict(row) for row in rows]
        json_file.write_text(json.dumps(data, indent=1) + "\n", encoding="utf-8")
    sys.exit(0 if passes(rows) else 1)


def row(bench: Bench, fault: Fault) -> Row:
    """Injects `fault`, checks that it shows, and locates it."""
    with bench.injected(fault) as injected:
        made = Row(fault.name, fault.kind, fault.path, *_lines(injected))
        made.problem = _problem(bench, injected)
        start = time.perf_counter()
        try:
            location = injected.locate()
        except Exception as error:
            made.text = f"{type(error).__name__}: {error}"
            return made
        finally:
            made.seconds = time.perf_counter() - start
        line = injected.line(location)
        made.hit = injected.hit(line)
        if location is None or location.first is None:
            return made
        made.site, made.cause = str(location.first.site), location.cause or ""
        made.suspect, made.cost = location.suspect, location.cost
        if line is not None:
            made.reported, made.text = _short(str(line)), line.text.strip()
        return made


def _problem(bench: Bench, injected: Injected) -> str:
    verdict, clean = injected.verdict(), bench.clean(injected.fault)
    if clean.status != "agreed":
        return f"the copy without the fault: {clean.status}"
    if verdict.status != "diverged" or verdict.error is not None:
        return f"the fault does not show: {verdict.error or verdict.status}"
    declared = injected.declared()
    if declared is not None and declared not in injected.reached:
        return f"reaches {injected.reached}, not {declared}"
    return ""


def _lines(injected: Injected) -> tuple[str, str]:
    both = sorted(injected.copy.lines), injected.reached
    own, after = (" ".join(_short(f"{file}.py:{line}") for file, line in one) for one in both)
    return own, after


def _short(place: str) -> str:
    """Returns a file and line without the folder of the copy, which has the name of the fault."""
    folder, _, name = place.rpartition("/")
    return name if not folder or folder.startswith("faulty_") else place


def passes(rows: list[Row]) -> bool:
    """Whether enough lines are hit, none is outside the model, and no fault had a problem."""
    share = sum(row.hit in HIT for row in rows) / len(rows) if rows else 0
    outside = any(row.hit == "outside" for row in rows)
    return share >= LEAST and not outside and not any(row.problem for row in rows)


def table(rows: list[Row]) -> Table:
    columns = ("architecture", "fault", "injected", "reported", "text", "site", "cause", "hit")
    made = Table(*columns, box=box.SIMPLE_HEAD, title="Faults at known lines")
    for row in rows:
        model, _, fault = row.fault.partition(".")
        texts = (f"{model}: {ARCHITECTURES[model]}", fault, row.injected, row.reported, row.text)
        cells = [text.replace("[", r"\[") for text in (*texts, row.site, row.cause, row.hit)]
        made.add_row(*cells, style=None if row.hit in HIT else "bold")
    return made


def remarks(rows: list[Row]) -> list[str]:
    """Returns the counts, and for each miss the line that it should have been."""
    hits = Counter(row.hit for row in rows)
    right = sum(row.suspect == row.path for row in rows)
    wrong = sum(row.suspect not in (row.path, "unknown", "") for row in rows)
    share = sum(hits[word] for word in HIT) / len(rows) if rows else 0
    lines = [
        f"{share:.1%} of {len(rows)}: " + ", ".join(f"{n} {word}" for word, n in hits.items()),
        f"suspect: {right} right, {wrong} wrong; {sum(row.seconds for row in rows):.0f} s",
    ]
    for row in rows:
        if row.problem:
            lines.append(f"bench: {row.fault}: {row.problem}")
        if row.hit not in HIT:
            named = row.reported or row.text or "nothing"
            lines.append(f"{row.hit}: {row.fault}: {named}; should be {row.injected} {row.reached}")
    return lines


if __name__ == "__main__":
    main()
