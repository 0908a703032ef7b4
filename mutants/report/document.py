"""The library as a Markdown document: `python -m mutants.report.document > docs/mutants.md`."""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import groupby

from mutants.library.registry import library
from mutants.mutant import Mutant

HEAD = """# The mutants

Each is one fault in the cached path of the registered decoder, or in both paths where a law other
than their agreement is what tells it: that is then named in place of the site. `kvfuzz mutants
ID` shows its source and its witness, `kvfuzz fuzz mutant:ID` hunts it. Layers count from 0. A
fault with a size is injected at the smallest that the checker promises to catch
([tolerance](tolerance.md)).

What kills a fault has in it what its witness has, and breaks the law that it declares: `kvfuzz
score --matrix` holds both against the kills, and lists what none bears out. A fault that is said
to be equivalent has the reason in place of that. It counts as such only while it is confirmed:
`python -m mutants.equivalence.exhaustive` runs it on every short program of a tiny decoder in
float64 (up to four moves, five columns, all strings of two tokens), and notes a digest of the
fault's file and of the decoder, with which the confirmation expires.

The faults of `offsetting` come in pairs that undo each other: the logits agree, the states
between do not, and only the check for latent differences kills them.
"""


def table(mutants: Sequence[Mutant]) -> str:
    """The document, one table per operator."""
    parts = [HEAD]
    for operator, group in groupby(mutants, key=lambda mutant: mutant.operator):
        parts.append(
            f"\n## {operator}\n\n| id | first differing site | fault | killed by | seen in |\n"
        )
        parts.append("|---|---|---|---|---|\n")
        parts += [_row(mutant) for mutant in group]
    return "".join(parts)


def _row(mutant: Mutant) -> str:
    site = f"`{mutant.site}`" if mutant.site else f"({mutant.without_site})"
    sizes = f" Size: {mutant.sizes_text}." if mutant.sizes else ""
    fault = f"{mutant.description}{sizes}"
    report = _link(mutant.seen_in)
    return f"| `{mutant.id}` | {site} | {fault} | {_killed_by(mutant)} | {report} |\n"


def _killed_by(mutant: Mutant) -> str:
    """What the cases that kill it have in them, or why none can."""
    if mutant.equivalent:
        return f"nothing: {mutant.equivalent}"
    return ", ".join(mutant.exercises) or ("nothing" if mutant.placebo else "any case")


def _link(report: str | None) -> str:
    match = re.fullmatch(r"([\w.-]+/[\w.-]+)#(\d+)", report or "")
    if not match:
        return report or ""
    return f"[{report}](https://github.com/{match[1]}/issues/{match[2]})"


if __name__ == "__main__":
    print(table(list(library().values())), end="")
