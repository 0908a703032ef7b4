"""Writes the pages of `docs/` that the code determines: the mutants, and the table of the laws.

python -m mutants.report.document docs
"""

from __future__ import annotations

import re
import sys
from collections.abc import Sequence
from itertools import groupby
from pathlib import Path

from kvfuzz.oracle.laws import DEFINITIONS
from mutants.library.registry import library
from mutants.mutant import Mutant

HEAD = """# The mutants

A mutant is a bug that is injected on purpose, to see whether a checker finds it. Each mutant on
this page is one bug in the cached path of the built-in decoder (`zoo`), or in both paths where only
a companion law can find it. `kvfuzz score` runs them all: the more of them it kills, the more of
your real bugs it is likely to find. The mutants of `canary` and `placebo` are controls, which test
the checker itself and are not part of the score.

`kvfuzz mutants ID` shows the source of a mutant and a case that kills it, and with `--shrink` also
the smallest version of that case that still does. `kvfuzz fuzz mutant:ID`
hunts it as if it were a bug of your own. [Adding a mutant](adding-a-mutant.md) takes one
function.

How to read the tables:

- **First differing site** is the first state inside the decoder that is wrong, such as `0.kv`,
  the keys and values of layer 0. A law in parentheses means that the logits of the two paths
  agree, mostly because both have the bug, and that this law finds it ([laws](programs.md#laws)).
  *Vacuity* means that the mutant ignores its cache on both paths, so that agreement proves nothing.
- **Killed by** lists what a case needs, such as a crop or left padding. Some mutants need no more
  than any case has.
- **Seen in** is a public report of the same bug in a released library.
- A mutant with a size, such as 0.0001 in float32, has the smallest size that the checker promises
  to catch ([tolerance](tolerance.md)).
- *Nothing* kills an equivalent mutant, and the table says why. It counts as equivalent while a
  check confirms it: no short program of a tiny decoder distinguishes it from the real one (four
  steps, five tokens, every string of two tokens, in float64). The confirmation expires when the
  code of the mutant or the code that it replaces changes.
- The mutants of `offsetting` are two bugs each, and the second undoes the first. The logits agree
  and the states between do not, so only the law *latent* kills them.
"""


def table(mutants: Sequence[Mutant]) -> str:
    """Returns the page, with one table per operator."""
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
    """What a case needs to kill the mutant, or why no case can."""
    if mutant.equivalent:
        return f"nothing: {mutant.equivalent}"
    return ", ".join(mutant.exercises) or ("nothing" if mutant.placebo else "any case")


def _link(report: str | None) -> str:
    match = re.fullmatch(r"([\w.-]+/[\w.-]+)#(\d+)", report or "")
    if not match:
        return report or ""
    return f"[{report}](https://github.com/{match[1]}/issues/{match[2]})"


LAWS_HEAD = "| law | holds if |\n|---|---|\n"


def with_laws(page: str) -> str:
    """Returns `page`, which is `docs/programs.md`, with the table of the laws as they are now."""
    before, found, after = page.partition(LAWS_HEAD)
    assert found
    rest = after[after.index("\n\n") :].lstrip("\n")
    rows = "".join(f"| {law} | {text} |\n" for law, text in DEFINITIONS.items())
    return f"{before}{LAWS_HEAD}{rows}\n{rest}"


if __name__ == "__main__":
    docs = Path(sys.argv[1])
    (docs / "mutants.md").write_text(table(list(library().values())), encoding="utf-8")
    programs = docs / "programs.md"
    programs.write_text(with_laws(programs.read_text(encoding="utf-8")), encoding="utf-8")
