"""The library as a Markdown document: `python -m mutants.report.document > docs/mutants.md`."""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import groupby

from mutants.mutant import Mutant
from mutants.registry import library

HEAD = """# The mutants

Each is one fault in the cached path of the registered decoder, or in both paths where a law other
than their agreement is what tells it: that is then named in place of the site. `kvfuzz mutants ID`
shows its source and its witness, `kvfuzz fuzz mutant:ID` hunts it. Layers count from 0. A fault
with a size is injected at the smallest that the checker promises to catch
([tolerance](tolerance.md)).
"""


def table(mutants: Sequence[Mutant]) -> str:
    """The document, one table per operator."""
    parts = [HEAD]
    for operator, group in groupby(mutants, key=lambda mutant: mutant.operator):
        parts.append(f"\n## {operator}\n\n| id | first differing site | fault | seen in |\n")
        parts.append("|---|---|---|---|\n")
        parts += [_row(mutant) for mutant in group]
    return "".join(parts)


def _row(mutant: Mutant) -> str:
    site = f"`{mutant.site}`" if mutant.site else f"({mutant.without_site})"
    sizes = f" Size: {mutant.sizes_text}." if mutant.sizes else ""
    fault = f"{mutant.description}{sizes}"
    return f"| `{mutant.id}` | {site} | {fault} | {_link(mutant.seen_in)} |\n"


def _link(report: str | None) -> str:
    match = re.fullmatch(r"([\w.-]+/[\w.-]+)#(\d+)", report or "")
    if not match:
        return report or ""
    return f"[{report}](https://github.com/{match[1]}/issues/{match[2]})"


if __name__ == "__main__":
    print(table(list(library().values())), end="")
