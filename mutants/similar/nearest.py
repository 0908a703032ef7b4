"""Which faults of the library a divergence looks like."""

from __future__ import annotations

from collections import Counter
from collections.abc import Container

from kvfuzz.case.case import Case
from kvfuzz.localize.location import Location, Near
from kvfuzz.subjects.trace import Site
from mutants.library.mutant import Mutant
from mutants.library.registry import library
from mutants.similar.pattern import pattern, similarity
from mutants.similar.store import patterns

CLOSE = 0.73
"""How similar a fault must be to be named: more than one can be that follows another operation."""
HOME = "kvfuzz/subjects/zoo/"
"""The code of the registered decoder. Of any other too little is known to be like its faults: what
was named for models of users' own was as often another fault."""
NAMED = 3
FEWEST_KINDS = 4
"""Of a subject that shows states at fewer kinds of site there is too little to be like."""


def nearest(location: Location, case: Case, leave_out: Container[str] = ()) -> tuple[Near, ...]:
    """The faults that the divergence at `location` of `case` looks most like, the closest first: at
    most NAMED, and only such as are close. Those whose id is in `leave_out` are not compared.

    Of faults that are equally close those come first whose operator has the most of them. None is
    named where no state differs, or first one of a kind at which no fault of the library shows,
    such as the logits of a subject that reports nothing else.
    """
    kinds = {Site.parse(cell.site).kind for cell in location.cells}
    if len(kinds) < FEWEST_KINDS or not _is_registered(location):
        return ()
    seen = pattern(location, case)
    sites = frozenset[str]().union(*(of_fault["site"] for of_fault in patterns().values()))
    if not seen.get("site", frozenset()) & sites:
        return ()
    close = {
        mutant_id: round(alike, 6)
        for mutant_id, of_fault in patterns().items()
        if mutant_id not in leave_out and (alike := similarity(seen, of_fault)) >= CLOSE
    }
    known = library()
    votes = Counter((known[mutant_id].operator, alike) for mutant_id, alike in close.items())

    def order(mutant_id: str) -> tuple[float, int, str]:
        alike = close[mutant_id]
        return -alike, -votes[known[mutant_id].operator, alike], mutant_id

    first = sorted(close, key=order)[:NAMED]
    return tuple(Near(name, close[name], _told(known[name])) for name in first)


def _is_registered(location: Location) -> bool:
    """Whether the registered decoder is what goes wrong."""
    source = location.first.source if location.first else None
    return source is not None and source.file.startswith(HOME)


def _told(mutant: Mutant) -> str:
    """The fault as a bug report would say it: its name in words, and what happens."""
    words = f"{mutant.operator} {mutant.name}".replace("_", " ")
    what = mutant.description.rstrip(".")
    return f"{words} ({what[:1].lower()}{what[1:]})"
