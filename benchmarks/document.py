"""Writes the table of docs/performance.md from what `python -m benchmarks --json FILE` wrote.

    python -m benchmarks.document FILE...

A row of a later file replaces that of an earlier one.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import click

from benchmarks.row import Outcome, Row
from benchmarks.rows import ROWS

PAGE = Path(__file__).parents[1] / "docs" / "performance.md"
BEGIN, END = "<!-- measured -->\n", "<!-- /measured -->\n"
HEAD = """| row | measured | against | ratio (spread) | bound | state | beside it |
|---|---|---|---|---|---|---|
"""


@click.command(help=(__doc__ or "").partition("\n")[0])
@click.argument("files", nargs=-1, required=True, type=click.Path(path_type=Path))
def main(files: tuple[Path, ...]) -> None:
    found = [json.loads(file.read_text(encoding="utf-8")) for file in files]
    PAGE.write_text(replace_block(PAGE.read_text(encoding="utf-8"), block(found)), encoding="utf-8")


def replace_block(page: str, text: str) -> str:
    """Returns `page` with `text` between its marks."""
    before, _, rest = page.partition(BEGIN)
    _, mark, after = rest.partition(END)
    if not mark:
        raise click.ClickException(f"the page has no {BEGIN.strip()} with {END.strip()} after it")
    return before + BEGIN + text + END + after


def block(found: Sequence[Mapping[str, Any]], order: Sequence[Row] = ROWS) -> str:
    """Returns the table of the rows in this `order`, as `found` in one or several runs."""
    rows = {row["name"]: row for one in found for row in one["rows"]}
    where = found[-1]["environment"]
    names = ("python", "torch", "hypothesis", "transformers", "mutmut")
    versions = ", ".join(f"{name} {where[name]}" for name in names)
    loads = sorted(float(row["load"]) for row in rows.values())
    commits = ", ".join(sorted({row["kvfuzz"] for row in rows.values()}))
    head = (
        f"Measured with {versions}, kvfuzz {commits}, on {where['processor']}, under a load of "
        f"{loads[0]:g} to {loads[-1]:g}.\n\n"
    )
    return head + HEAD + "".join(_line(rows.get(row.name) or _unmeasured(row)) for row in order)


def _unmeasured(row: Row) -> Mapping[str, Any]:
    return Outcome(row, "not run", "not measured here").to_json()


def _line(row: Mapping[str, Any]) -> str:
    ratio = "-"
    if row["ratio"] is not None:
        ratio = f"{row['ratio']:.3g} ({row['least']:.3g} to {row['most']:.3g})"
    bound = f"{'≥' if row['at_least'] else '≤'} {row['bound']:.3g}"
    beside = "; ".join(filter(None, (row["reason"], row["evidence"])))
    state = row["state"] if row["state"] in ("met", "not run") else f"**{row['state']}**"
    cells = (f"`{row['name']}`", row["what"], row["against"], ratio, bound, state, beside)
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |\n"


if __name__ == "__main__":
    main()
