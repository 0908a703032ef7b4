"""The library as a Markdown document: `python -m mutants.report.document > docs/mutants.md`."""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import groupby

from mutants.library.mutant import Mutant
from mutants.library.registry import library

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

`a+b` is the pair of two faults, wherever an id is taken; `kvfuzz score --pairs N` draws N of them
under the seed, of faults that replace different functions, and says which mask each other.

The faults of `offsetting` come in pairs that undo each other: the logits agree, the states
between do not, and only the check for latent differences kills them.

A located divergence is told what it looks like. Its pattern is a set of words for each of a few
features: what was done to the caches before, arguments and padding, a window that is full, the
mixing, the storage and the positions where these are not the plain ones, the first site and its
layer, the step, which tokens differ, whether entries are missing or too many, the size of the
difference, the rows. The similarity to a fault's witness is the weighted mean of the shares of
words in common (`mutants/similar/pattern.py` has the weights); the closest three above 0.73 are
named.
With the fault itself and its near-twins (the same targets and lines but for literals, dtypes,
signs and comparisons) left out, the nearest has the right operator for 160 of 185 witnesses (86.5
%). With all faults of the operator that replace the same functions left out it is 108 of 164. And
it says what a divergence looks like, not what it is: with the whole operator left out something is
still named in 151 of 185. Of the cases found and shrunk under seeds 0 and 7, and without the
registered decoder's settings, which it reads, there are figures of a library of 152 such faults: of
these 132 (86.8 %) and 130 (85.5 %) were right where 135 witnesses were, and 104, 101 and 107
without the settings; the weights were chosen by those witnesses and seed 0. `python
benchmarks/nearest.py --seed 0 --seed 7 -n 2` measures all but the figure without settings.
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
