"""Writes the table of docs/performance.md from what `python -m benchmarks --json FILE` wrote.

    python -m benchmarks.document FILE...

A row of a later file replaces that of an earlier one; a row that no file has keeps its line.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import click

from benchmarks.environment import ABSENT
from benchmarks.row import Outcome, Row
from benchmarks.rows import ROWS

PAGE = Path(__file__).parents[1] / "docs" / "performance.md"
BEGIN, END = "<!-- measured -->\n", "<!-- /measured -->\n"
HEAD = """| row | measured | against | ratio (spread) | bound | state | beside it | commit, load |
|---|---|---|---|---|---|---|---|
"""


@click.command(help=(__doc__ or "").partition("\n")[0])
@click.argument("files", nargs=-1, required=True, type=click.Path(path_type=Path))
def main(files: tuple[Path, ...]) -> None:
    found = [json.loads(file.read_text(encoding="utf-8")) for file in files]
    page = PAGE.read_text(encoding="utf-8")
    PAGE.write_text(replace_block(page, block(found, ROWS, lines_of(page))), encoding="utf-8")


def replace_block(page: str, text: str) -> str:
    """Returns `page` with `text` between its marks."""
    before, _, rest = page.partition(BEGIN)
    _, mark, after = rest.partition(END)
    if not mark:
        raise click.ClickException(f"the page has no {BEGIN.strip()} with {END.strip()} after it")
    return before + BEGIN + text + END + after


def lines_of(page: str) -> dict[str, str]:
    """Returns the lines of the table in `page`, by the name of the row."""
    text = page.partition(BEGIN)[2].partition(END)[0]
    lines = [line + "\n" for line in text.splitlines() if line.startswith("| `")]
    return {line.split("`")[1]: line for line in lines}


def block(
    found: Sequence[Mapping[str, Any]], order: Sequence[Row], known: Mapping[str, str]
) -> str:
    """Returns the table of the rows in this `order`, as `found` in one or several runs, or as their
    lines are `known`."""
    rows = {row["name"]: row for one in found for row in one["rows"]}
    where = found[-1]["environment"]
    names = ("python", "torch", "hypothesis", "transformers", "mutmut")
    # The rows of a package that is missing here keep their lines from a run that had it.
    present = (name for name in names if where[name] != ABSENT)
    versions = ", ".join(f"{name} {where[name]}" for name in present)
    head = f"Measured with {versions}, on {where['processor']}.\n\n"
    lines = {row.name: _line(_unmeasured(row)) for row in order}
    lines |= known | {name: _line(row) for name, row in rows.items()}
    return head + HEAD + "".join(lines[row.name] for row in order)


def _unmeasured(row: Row) -> Mapping[str, Any]:
    outcome = Outcome(row, "not run", "not measured here")
    return {**outcome.to_json(), "kvfuzz": "", "load": ""}


def _line(row: Mapping[str, Any]) -> str:
    ratio = "-"
    if row["ratio"] is not None:
        ratio = f"{row['ratio']:.3g} ({row['least']:.3g} to {row['most']:.3g})"
    bound = f"{'≥' if row['at_least'] else '≤'} {row['bound']:.3g}"
    beside = "; ".join(filter(None, (row["reason"], row["evidence"])))
    state = row["state"] if row["state"] in ("met", "not run") else f"**{row['state']}**"
    at = ", ".join(filter(None, (row["kvfuzz"], row["load"])))
    cells = (f"`{row['name']}`", row["what"], row["against"], ratio, bound, state, beside, at)
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |\n"


if __name__ == "__main__":
    main()
