"""Which faults of the library a divergence looks like."""

from __future__ import annotations

from collections import Counter
from collections.abc import Container

from kvfuzz.case import Case
from kvfuzz.location import Location, Near
from kvfuzz.sites import Site
from mutants.mutant import Mutant
from mutants.pattern import pattern, similarity
from mutants.patterns import patterns
from mutants.registry import library

CLOSE = 0.73
"""How similar a fault must be to be named: more than one can be that follows another operation."""
SETTINGS = {"positions", "cache", "mix"}
CLOSE_WITHOUT = 0.85
"""The same for a subject that does not have the settings of the registered decoder: there less is
known of what a fault looks like."""
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
    if len(kinds) < FEWEST_KINDS:
        return ()
    seen = pattern(location, case)
    least = CLOSE if set(case.config) >= SETTINGS else CLOSE_WITHOUT
    sites = frozenset[str]().union(*(of_fault["site"] for of_fault in patterns().values()))
    if not seen.get("site", frozenset()) & sites:
        return ()
    close = {
        mutant_id: round(alike, 6)
        for mutant_id, of_fault in patterns().items()
        if mutant_id not in leave_out and (alike := similarity(seen, of_fault)) >= least
    }
    known = library()
    votes = Counter((known[mutant_id].operator, alike) for mutant_id, alike in close.items())

    def order(mutant_id: str) -> tuple[float, int, str]:
        alike = close[mutant_id]
        return -alike, -votes[known[mutant_id].operator, alike], mutant_id

    first = sorted(close, key=order)[:NAMED]
    return tuple(Near(name, close[name], _told(known[name])) for name in first)


def _told(mutant: Mutant) -> str:
    """The fault as a bug report would say it: its name in words, and what happens."""
    words = f"{mutant.operator} {mutant.name}".replace("_", " ")
    what = mutant.description.rstrip(".")
    return f"{words} ({what[:1].lower()}{what[1:]})"
