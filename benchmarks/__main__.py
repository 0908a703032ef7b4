"""Measures what kvfuzz costs, as ratios to what it cannot avoid, and compares them with bounds.

    python -m benchmarks --list
    python -m benchmarks --only fuzz-loop --only noise-floor
    python -m benchmarks --json FILE

docs/performance.md explains the rows. Exit code 1 if a ratio misses its bound in every repeat, if
the evidence beside a ratio is not as it must be, or if a row raises; 3 if no row could run.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path

import click

from benchmarks.environment import environment, load
from benchmarks.row import FAILS, Outcome, Row
from benchmarks.rows import ROWS

HEAD = ("row", "ratio", "spread", "bound", "state", "evidence")
WIDTHS = (30, 8, 18, 8, 8)


@click.command(help=(__doc__ or "").partition("\n")[0])
@click.option("--only", multiple=True, metavar="NAME", help="Run this row or family (repeatable).")
@click.option("--list", "listing", is_flag=True, help="List the rows and run none.")
@click.option("--repeats", type=click.IntRange(1), help="Repeats of every row.")
@click.option("--json", "file", type=click.Path(path_type=Path), metavar="FILE")
def main(only: tuple[str, ...], listing: bool, repeats: int | None, file: Path | None) -> None:
    rows = choose(ROWS, only)
    if listing:
        for row in rows if only else ROWS:
            slow = "; slow, only by name" if row.slow else ""
            click.echo(f"{row.name:30} {row.what}, against {row.against} ({bound_text(row)}{slow})")
        return
    sys.exit(run(rows, repeats, file))


def choose(rows: Sequence[Row], only: Sequence[str]) -> list[Row]:
    """Returns the rows with these names, or in these families (`noise-floor` has
    `noise-floor.2-rows`); without names, all that are not slow. Raises click.UsageError."""
    for name in only:
        if not any(_is_named(row, name) for row in rows):
            raise click.UsageError(f"there is no row {name!r}: see --list")
    if not only:
        return [row for row in rows if not row.slow]
    return [row for row in rows if any(_is_named(row, name) for name in only)]


def _is_named(row: Row, name: str) -> bool:
    return row.name == name or row.name.startswith(f"{name}.")


def run(rows: Sequence[Row], repeats: int | None = None, file: Path | None = None) -> int:
    """Measures the `rows`, prints each as it ends, writes `file`, and returns the exit code."""
    where = environment()
    click.echo("; ".join(f"{name} {value}" for name, value in where.items()))
    click.echo(_line(HEAD))
    found, written = [], []
    for row in rows:
        before = load()
        outcome = row.measure(repeats)
        found.append(outcome)
        written.append({**outcome.to_json(), "kvfuzz": where["kvfuzz"], "load": before})
        click.echo(_line(_cells(outcome)))
        if file is not None:  # after each row: a run that is interrupted keeps what it has
            text = json.dumps({"environment": where, "rows": written}, indent=1)
            file.write_text(text + "\n", encoding="utf-8")
    return exit_code(found)


def exit_code(found: Sequence[Outcome]) -> int:
    """Returns 1 if a row fails, 3 if none ran, else 0."""
    states = [outcome.state for outcome in found]
    if any(state in FAILS for state in states):
        return 1
    return 3 if all(state == "not run" for state in states) else 0


def bound_text(row: Row) -> str:
    return f"{'at least' if row.at_least else 'at most'} {row.bound:g}"


def _cells(outcome: Outcome) -> tuple[str, ...]:
    data = outcome.to_json()
    ratio = spread = "-"
    if data["ratio"] is not None:
        ratio, spread = f"{data['ratio']:.3g}", f"{data['least']:.3g} to {data['most']:.3g}"
    bound = f"{'>=' if outcome.row.at_least else '<='} {outcome.row.bound:g}"
    evidence = "; ".join(filter(None, (outcome.reason, data["evidence"])))
    return outcome.row.name, ratio, spread, bound, outcome.state, evidence


def _line(cells: Sequence[str]) -> str:
    widths = (*WIDTHS, 0)
    return " ".join(f"{cell:{width}}" for cell, width in zip(cells, widths, strict=True)).rstrip()


if __name__ == "__main__":
    main()
