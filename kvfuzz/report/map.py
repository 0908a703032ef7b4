"""Draws up the map of differences: how far each site is off at each position, step by step.

`difference_table` returns it as rows of cells; `map_axes` chooses its rows and columns. A cell that
joins several places shows the largest of them.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, groupby
from typing import Any

from kvfuzz.case.case import Case
from kvfuzz.localize.causes import ordinal
from kvfuzz.localize.location import Divergence, SiteDifference
from kvfuzz.report.map_axes import (
    Band,
    MapPlace,
    StepHead,
    choose_columns,
    choose_rows,
    count_gaps,
    label_columns,
    page_heading,
    terminal_heading,
)
from kvfuzz.subjects.trace import Site

LEVELS = (1.0, 10.0, 100.0, 1e3, 1e6, 1e9, 1e12)
"""Where each colour begins, in times the allowed. Not evenly spaced: in float32 a fault rarely
exceeds 1000 times the allowed, in float64 it often exceeds a million million times."""

MOST_PLAIN = 24
"""A map of more columns than this has small cells, which show their numbers on hover only."""

MOST_DENSE = 80
"""A map of more columns than this has the smallest cells."""

JOINED = "Joined cells show the largest of their places."

CellLike = SiteDifference | Mapping[str, Any]
"""A measured place, as a value or as its JSON."""

FirstDivergence = Divergence | Mapping[str, Any] | None
"""The first divergence, as a value or as its JSON."""

Excess = Mapping[MapPlace, float]
"""Difference / allowed at each place; inf where a path lacks it or is not finite."""


@dataclass(frozen=True, slots=True)
class MapSize:
    """The most rows a map may have, and the most columns, counting the gaps between steps."""

    rows: int
    columns: int


PAGE = MapSize(rows=80, columns=160)


@dataclass(frozen=True)
class MapCell:
    """One place, or the largest of several. `level` indexes LEVELS (None where the paths agree),
    `first` is set on the first divergence, `begins` on the first cell of a step. With `held` false
    the cell is empty and covers `span` columns: the row has no state there."""

    text: str = ""
    title: str = ""
    level: int | None = None
    missing: bool = False
    first: bool = False
    begins: bool = False
    held: bool = True
    span: int = 1


@dataclass(frozen=True)
class MapRow:
    """One site, or all sites of neighbouring layers: its heading on a page (`prose`) and in a
    terminal (`short`), and its cells."""

    prose: str
    short: str
    cells: tuple[MapCell, ...]


@dataclass(frozen=True)
class DifferenceTable:
    """The map as rows of cells. `summary` says in words what differs, `notes` how to read it."""

    heads: tuple[StepHead, ...]
    rows: tuple[MapRow, ...]
    summary: str
    notes: tuple[str, ...] = ()

    @property
    def columns(self) -> int:
        return sum(len(head.columns) for head in self.heads)

    @property
    def gaps(self) -> int:
        """The number of gaps between steps: none if each step is one column."""
        return count_gaps([len(head.columns) for head in self.heads])

    @property
    def width(self) -> int:
        """Columns and gaps."""
        return self.columns + self.gaps

    @property
    def density(self) -> str:
        """The size of the cells on a page: `plain`, with numbers in them, `dense` or `fine`."""
        if self.columns > MOST_DENSE:
            return "fine"
        return "dense" if self.columns > MOST_PLAIN else "plain"

    def step_labels(self, room: float) -> tuple[str, ...]:
        """Returns the heading of each step, for columns that are `room` characters wide: its number
        and kind, only its number, or nothing where the heading before leaves no room."""
        labels, free = [], 0.0
        gap = 1 if self.gaps else 0
        starts = accumulate((len(head.columns) * room + gap for head in self.heads), initial=0.0)
        for head, start in zip(self.heads, starts, strict=False):
            width = len(head.columns) * room
            label = f"{head} {head.kind}" if len(f"{head} {head.kind}") <= width else str(head)
            labels.append(label if start >= free else "")
            free = max(free, start + len(label) + 1) if labels[-1] else free
        return tuple(labels)

    def position_labels(self, room: float) -> tuple[tuple[str, ...], ...]:
        """Returns the headings of the columns of each step, for columns that are `room` characters
        wide: as many as fit, each within its step, or within the map if that has no gaps."""
        if self.gaps:
            return tuple(label_columns(head.columns, room) for head in self.heads)
        columns = [column for head in self.heads for column in head.columns]
        labels = iter(label_columns(columns, room))
        return tuple(tuple(next(labels) for _ in head.columns) for head in self.heads)


def difference_table(
    cells: Sequence[CellLike], case: Case, first: FirstDivergence, limits: MapSize = PAGE
) -> DifferenceTable | None:
    """Returns the map of the measured `cells` of `case`, at most as large as `limits`; None without
    cells.

    `first` is the located first divergence; with None the first place that differs is marked.
    """
    if not cells:
        return None
    excess = _excess(cells)
    sites = sorted((Site.parse(name) for name in {p[1] for p in excess}), key=lambda s: s.order)
    marked = _first(excess, sites, first)
    heads, joined_columns = choose_columns(excess, case, limits.columns)
    bands, joined_rows = choose_rows(sites, marked, limits.rows)
    joined = [*joined_rows, *joined_columns]
    return DifferenceTable(
        heads,
        _rows(bands, heads, excess, marked),
        _summary(excess, marked),
        (*_notes(excess, marked, case), *joined, *([JOINED] if joined else [])),
    )


def level(excess: float) -> int | None:
    """Returns the colour of `excess`: an index into LEVELS, None if it is within the allowed."""
    return sum(excess >= bound for bound in LEVELS) - 1 if excess > 1 else None


def short(excess: float) -> str:
    """Returns `excess` in four characters at most: `7.3`, `42`, `4e5`, `∞`; a dot within the
    allowed."""
    if not excess > 1:
        return "·"
    if math.isinf(excess):
        return "∞"
    if excess < 1000:
        return f"{excess:.1f}" if excess < 9.95 else f"{min(excess, 999):.0f}"
    return f"{excess:.0e}".replace("e+0", "e").replace("e+", "e")


def times(excess: float) -> str:
    """Returns `excess` as three digits and a multiplication sign."""
    if math.isinf(excess):
        digits = "∞"
    elif excess < 1e6:
        digits = f"{excess:.3g}" if excess < 999.5 else f"{float(f'{excess:.3g}'):,.0f}"
    else:
        digits = f"{excess:.2e}".replace("e+0", "e").replace("e+", "e")
    return f"{digits} \N{MULTIPLICATION SIGN}"


def level_labels() -> list[str]:
    """Returns the bounds of the colours, for the key of a map."""
    return [short(bound) if bound > 1 else "1" for bound in LEVELS]


def _excess(cells: Sequence[CellLike]) -> dict[MapPlace, float]:
    """Returns the excess by place. NaN counts as inf: it would compare as no excess at all."""
    found: dict[MapPlace, float] = {}
    for cell in cells:
        if isinstance(cell, SiteDifference):
            place, value = (cell.step, cell.site, cell.position), cell.excess
        else:
            place = (cell["step"], str(cell["site"]), cell["position"])
            value = float(cell["excess"])  # strict JSON holds "inf" and "nan" as text
        value = math.inf if math.isnan(value) else value
        found[place] = max(value, found.get(place, 0.0))
    return found


def _first(excess: Excess, sites: Sequence[Site], first: FirstDivergence) -> MapPlace | None:
    """Returns the place of the first divergence, else the first place of the map that differs."""
    if isinstance(first, Divergence):
        return first.step, str(first.site), first.position
    if first is not None:
        return first["step"], str(first["site"]), first["position"]
    order = {str(site): rank for rank, site in enumerate(sites)}
    differing = [place for place, value in excess.items() if value > 1]
    return min(differing, key=lambda p: (p[0], order[p[1]], p[2]), default=None)


# Cells.


def _rows(
    bands: Sequence[Band], heads: Sequence[StepHead], excess: Excess, first: MapPlace | None
) -> tuple[MapRow, ...]:
    row_of = {str(site): row for row, band in enumerate(bands) for site in band}
    columns = [column for head in heads for column in head.columns]
    column_of = {
        (step, position): index
        for index, column in enumerate(columns)
        for step in column.steps
        for position in column.positions
    }
    places: dict[tuple[int, int], list[MapPlace]] = {}
    for place in excess:
        at = row_of[place[1]], column_of[place[0], place[2]]
        places.setdefault(at, []).append(place)
    return tuple(
        MapRow(
            page_heading(band), terminal_heading(band), _cells(row, heads, places, excess, first)
        )
        for row, band in enumerate(bands)
    )


def _cells(
    row: int,
    heads: Sequence[StepHead],
    places: Mapping[tuple[int, int], list[MapPlace]],
    excess: Excess,
    first: MapPlace | None,
) -> tuple[MapCell, ...]:
    """Returns the cells of a row. Neighbours without a state become one empty cell: the map of a
    cache that grows token by token would otherwise be mostly empty cells."""
    cells: list[MapCell] = []
    column = 0
    for head in heads:
        inside = [(row, column + offset) for offset in range(len(head.columns))]
        column += len(inside)
        begins = True
        for has_state, run in groupby(inside, key=places.__contains__):
            made = [_cell(places[at], excess, first) if has_state else MapCell() for at in run]
            made = made if has_state else [MapCell(held=False, span=len(made))]
            cells += [replace(made[0], begins=begins), *made[1:]]
            begins = False
    return tuple(cells)


def _cell(places: Sequence[MapPlace], excess: Excess, first: MapPlace | None) -> MapCell:
    worst = max(places, key=excess.__getitem__)
    value = excess[worst]
    marked = first in places
    title = _title(worst, value, len(places))
    if marked and first is not None:
        alone = len(places) == 1
        title = f"first divergence{'' if alone else f' ({_where(first)})'}: {title}"
    return MapCell(short(value), title, level(value), math.isinf(value), marked)


def _title(place: MapPlace, value: float, among: int) -> str:
    amount = f"{times(value)} the allowed"
    if math.isinf(value):
        amount = "one path has too few or too many positions here, or is not finite"
    most = f"the most of {among} places, " if among > 1 else ""
    return f"{amount} ({most}{_where(place)})"


def _where(place: MapPlace) -> str:
    step, site, position = place
    text = f"{Site.parse(site).prose}, step {step + 1}"
    return text if position < 0 else f"{text}, position {position}, the {ordinal(position)} token"


def _summary(excess: Excess, first: MapPlace | None) -> str:
    differing = sum(value > 1 for value in excess.values())
    text = f"{differing} of {len(excess)} places differ"
    if first is None:
        return f"{text}."
    return f"{text}. First divergence: {_where(first)}."


def _notes(excess: Excess, first: MapPlace | None, case: Case) -> list[str]:
    """Returns what to know about the mark. A fault too small for the dtype of the case is located
    in float64; the map, in the dtype of the case, then shows nothing at that place."""
    if first is None:
        return []
    if first not in excess:
        return ["The place of the first divergence is not on the map."]
    if excess[first] > 1:
        return []
    return [
        f"The map is in {case.dtype}, where the first divergence hides in the rounding: it was "
        "located in float64."
    ]
