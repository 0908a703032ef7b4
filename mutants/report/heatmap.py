"""The map of differences: how far each site is off at each position, step by step, as a table."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Any

from kvfuzz.case import Case
from kvfuzz.locating import ordinal
from kvfuzz.sites import Site

LEVELS = (1.0, 10.0, 100.0, 1e3, 1e6, 1e9, 1e12)
"""Where each colour begins, in times the allowed. Not evenly spaced: in float32 a fault rarely
exceeds 1000 times the allowed, in float64 it often exceeds a million million times."""

WIDEST = 24
"""A map of more positions than this is drawn with small cells, and the numbers only on hover."""

Place = tuple[int, str, int]
"""A step, a site as JSON holds it, and a position."""


@dataclass(frozen=True)
class Cell:
    """One place: `level` indexes LEVELS (None where the paths agree), `first` is set on the first
    divergence, `begins` on the first cell of a step. With `held` false it stands for `span`
    positions that the site has no state for."""

    text: str = ""
    title: str = ""
    level: int | None = None
    missing: bool = False
    first: bool = False
    begins: bool = False
    held: bool = True
    span: int = 1


@dataclass(frozen=True)
class StepHead:
    """The heading of step `index` (from 0): its kind, and the positions that it shows."""

    index: int
    kind: str
    positions: tuple[int, ...]


@dataclass(frozen=True)
class DifferenceTable:
    """The map as rows of cells. `summary` says the same in words; `note` what to know besides."""

    heads: tuple[StepHead, ...]
    rows: tuple[tuple[str, tuple[Cell, ...]], ...]
    summary: str
    note: str | None

    @property
    def dense(self) -> bool:
        return sum(len(head.positions) for head in self.heads) > WIDEST


def difference_table(
    cells: Sequence[Mapping[str, Any]], case: Case, located: Mapping[str, Any] | None
) -> DifferenceTable | None:
    """The table of a mutant's `map`; None if its subject does not report its states."""
    if not cells:
        return None
    excess = {(c["step"], c["site"], c["position"]): float(c["excess"]) for c in cells}
    sites = sorted((Site.parse(name) for name in {p[1] for p in excess}), key=lambda s: s.order)
    first = _first(excess, sites, located)
    heads = _heads(excess, case)
    rows = tuple((site.prose, _row(site, heads, excess, first)) for site in sites)
    return DifferenceTable(heads, rows, _summary(excess, first), _note(excess, first, case))


def level(excess: float) -> int | None:
    """The colour of `excess`: an index into LEVELS, None if it is within the allowed."""
    return sum(excess >= bound for bound in LEVELS) - 1 if excess > 1 else None


def short(excess: float) -> str:
    """At most four characters, for a cell: `7.3`, `42`, `4e5`, `∞`; a dot within the allowed."""
    if not excess > 1:
        return "·"
    if math.isinf(excess):
        return "∞"
    if excess < 1000:
        return f"{excess:.1f}" if excess < 9.95 else f"{min(excess, 999):.0f}"
    return f"{excess:.0e}".replace("e+0", "e").replace("e+", "e")


def times(excess: float) -> str:
    """Three digits and a multiplication sign."""
    if math.isinf(excess):
        digits = "∞"
    elif excess < 1e6:
        digits = f"{excess:.3g}" if excess < 999.5 else f"{float(f'{excess:.3g}'):,.0f}"
    else:
        digits = f"{excess:.2e}".replace("e+0", "e").replace("e+", "e")
    return f"{digits} \N{MULTIPLICATION SIGN}"


def _first(
    excess: Mapping[Place, float], sites: Sequence[Site], located: Mapping[str, Any] | None
) -> Place | None:
    """Where the first divergence is: as it was located, else the first in the map that differs."""
    if located is not None:
        return located["step"], str(located["site"]), located["position"]
    order = {str(site): rank for rank, site in enumerate(sites)}
    differing = [place for place, value in excess.items() if value > 1]
    return min(differing, key=lambda p: (p[0], order[p[1]], p[2]), default=None)


def _heads(excess: Mapping[Place, float], case: Case) -> tuple[StepHead, ...]:
    kinds = {step.index: step.kind for step in case.steps()}
    heads = []
    for index in sorted({step for step, _, _ in excess}):
        positions = sorted({position for step, _, position in excess if step == index})
        heads.append(StepHead(index, kinds.get(index, "beyond the schedule"), tuple(positions)))
    return tuple(heads)


def _row(
    site: Site, heads: Sequence[StepHead], excess: Mapping[Place, float], first: Place | None
) -> tuple[Cell, ...]:
    """The cells of `site`; neighbours without a state become one, since a cache that grows token
    by token would otherwise be mostly empty cells."""
    cells: list[Cell] = []
    for head in heads:
        places = [(head.index, str(site), position) for position in head.positions]
        begins = True
        for held, run in groupby(places, key=excess.__contains__):
            made = [_cell(site, p, excess, p == first) if held else Cell() for p in run]
            made = made if held else [Cell(held=False, span=len(made))]
            cells += [replace(made[0], begins=begins), *made[1:]]
            begins = False
    return tuple(cells)


def _cell(site: Site, place: Place, excess: Mapping[Place, float], first: bool) -> Cell:
    value = excess[place]
    amount = f"{times(value)} the allowed"
    if math.isinf(value):
        amount = "the cached path has too few or too many positions here, or is not finite"
    title = f"{'first divergence: ' if first else ''}{amount} ({site.prose}, {_where(place)})"
    return Cell(short(value), title, level(value), math.isinf(value), first)


def _where(place: Place) -> str:
    return f"step {place[0] + 1}, position {place[2]}, the {ordinal(place[2])} token"


def _summary(excess: Mapping[Place, float], first: Place | None) -> str:
    differing = sum(value > 1 for value in excess.values())
    text = f"{differing} of {len(excess)} places differ"
    if first is None:
        return f"{text}."
    return f"{text}. First divergence: {Site.parse(first[1]).prose}, {_where(first)}."


def _note(excess: Mapping[Place, float], first: Place | None, case: Case) -> str | None:
    """A fault too small for the dtype of the case is located in float64 (`locate_precisely`), and
    the map, in the dtype of the case, then shows nothing where the fault begins."""
    if first is None or first not in excess or excess[first] > 1:
        return None
    return (
        f"The map is in {case.dtype}, where the first divergence hides in the rounding: it was "
        "located in float64."
    )
