"""The map of differences: how far each site is off at each position, step by step, as a table.

Rows are sites in the canonical order, columns are positions, grouped by step. A model of many
layers, or a case of many tokens, has more places than a reader can take in: neighbours are then
joined, each joined cell is the largest of its places, and the map says what it joined.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, chain, groupby
from typing import Any

from kvfuzz.case.case import Case
from kvfuzz.localize.causes import ordinal
from kvfuzz.localize.location import Divergence, SiteDifference
from kvfuzz.report.words import step_in_words
from kvfuzz.subjects.trace import Site

LEVELS = (1.0, 10.0, 100.0, 1e3, 1e6, 1e9, 1e12)
"""Where each colour begins, in times the allowed. Not evenly spaced: in float32 a fault rarely
exceeds 1000 times the allowed, in float64 it often exceeds a million million times."""

WIDEST = 24
"""A map of more columns than this is drawn with small cells, and the numbers only on hover."""

FINE = 80
"""A map of more columns than this is drawn with the smallest cells."""

JOINED = "Joined cells show the largest of their places."

CellLike = SiteDifference | Mapping[str, Any]
"""A measured place, as a value or as JSON holds it."""

First = Divergence | Mapping[str, Any] | None
"""The first divergence, as a value or as JSON holds it."""

Place = tuple[int, str, int]
"""A step, a site as JSON holds it, and a position."""

Excess = Mapping[Place, float]
"""How many times the allowed each place is off; inf where a path is not finite, or lacks it."""


@dataclass(frozen=True, slots=True)
class Limits:
    """At most this many rows, and columns with the gaps between steps."""

    rows: int
    columns: int


PAGE = Limits(rows=80, columns=160)


@dataclass(frozen=True)
class Cell:
    """One place, or the largest of several: `level` indexes LEVELS (None where the paths agree),
    `first` is set on the first divergence, `begins` on the first cell of a step. With `held` false
    it stands for `span` columns that the row has no state for."""

    text: str = ""
    title: str = ""
    level: int | None = None
    missing: bool = False
    first: bool = False
    begins: bool = False
    held: bool = True
    span: int = 1


@dataclass(frozen=True)
class Column:
    """The places of one column: its steps and its positions, neighbours each."""

    steps: tuple[int, ...]
    positions: tuple[int, ...]

    def __str__(self) -> str:
        """The positions; a dash for what has none, which stands at position -1."""
        return "-" if self.positions[-1] < 0 else _range(self.positions[0], self.positions[-1])


@dataclass(frozen=True)
class Head:
    """The heading of a group of columns: the `steps` (from 0; more than one if they are joined),
    what `kind` of step that is, the same in `words`, and the columns."""

    steps: tuple[int, ...]
    kind: str
    words: str
    columns: tuple[Column, ...]

    def __str__(self) -> str:
        return _range(self.steps[0] + 1, self.steps[-1] + 1)


@dataclass(frozen=True)
class Row:
    """One site, or all sites of neighbouring layers: its heading for a page and for a terminal, and
    its cells."""

    prose: str
    short: str
    cells: tuple[Cell, ...]


@dataclass(frozen=True)
class DifferenceTable:
    """The map as rows of cells. `summary` says the same in words; `notes` what to know besides."""

    heads: tuple[Head, ...]
    rows: tuple[Row, ...]
    summary: str
    notes: tuple[str, ...] = ()

    @property
    def columns(self) -> int:
        return sum(len(head.columns) for head in self.heads)

    @property
    def gaps(self) -> int:
        """How many gaps between steps it is drawn with: none, if each step is one column."""
        return _gaps([len(head.columns) for head in self.heads])

    @property
    def width(self) -> int:
        """Columns and gaps."""
        return self.columns + self.gaps

    @property
    def density(self) -> str:
        """The size of the cells on a page: `plain`, with numbers in them, `dense` or `fine`."""
        return "fine" if self.columns > FINE else "dense" if self.columns > WIDEST else "plain"

    def step_labels(self, room: float) -> tuple[str, ...]:
        """The heading of each step, for columns that are `room` characters wide: number and kind,
        the number alone, or nothing where the one before leaves no room."""
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
        """The headings of the columns of each step, for columns that are `room` characters wide:
        as many as can be read, each within its step, or within the map if it has no gaps."""
        if self.gaps:
            return tuple(_labels(head.columns, room) for head in self.heads)
        columns = [column for head in self.heads for column in head.columns]
        labels = iter(_labels(columns, room))
        return tuple(tuple(next(labels) for _ in head.columns) for head in self.heads)


def difference_table(
    cells: Sequence[CellLike], case: Case, first: First, limits: Limits = PAGE
) -> DifferenceTable | None:
    """The table of the measured `cells` of `case`, at most as large as `limits`; None without any.

    `first` is the first divergence as it was located; None takes the first on the map.
    """
    if not cells:
        return None
    excess = _excess(cells)
    sites = sorted((Site.parse(name) for name in {p[1] for p in excess}), key=lambda s: s.order)
    marked = _first(excess, sites, first)
    heads, joined_columns = _heads(excess, case, limits.columns)
    bands, joined_rows = _bands(sites, marked, limits.rows)
    joined = [*joined_rows, *joined_columns]
    return DifferenceTable(
        heads,
        _rows(bands, heads, excess, marked),
        _summary(excess, marked),
        (*_notes(excess, marked, case), *joined, *([JOINED] if joined else [])),
    )


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


def level_labels() -> list[str]:
    """The bounds of the colours, for the key of a map."""
    return [short(bound) if bound > 1 else "1" for bound in LEVELS]


def _excess(cells: Sequence[CellLike]) -> dict[Place, float]:
    """The cells by place. NaN, which compares as smaller than nothing, counts as inf."""
    found: dict[Place, float] = {}
    for cell in cells:
        if isinstance(cell, SiteDifference):
            place, value = (cell.step, cell.site, cell.position), cell.excess
        else:
            place = (cell["step"], str(cell["site"]), cell["position"])
            value = float(cell["excess"])  # strict JSON holds "inf" and "nan" as text
        value = math.inf if math.isnan(value) else value
        found[place] = max(value, found.get(place, 0.0))
    return found


def _first(excess: Excess, sites: Sequence[Site], first: First) -> Place | None:
    """Where the first divergence is: as it was located, else the first in the map that differs."""
    if isinstance(first, Divergence):
        return first.step, str(first.site), first.position
    if first is not None:
        return first["step"], str(first["site"]), first["position"]
    order = {str(site): rank for rank, site in enumerate(sites)}
    differing = [place for place, value in excess.items() if value > 1]
    return min(differing, key=lambda p: (p[0], order[p[1]], p[2]), default=None)


# Rows.


def _bands(
    sites: Sequence[Site], first: Place | None, limit: int
) -> tuple[list[tuple[Site, ...]], list[str]]:
    """The sites of each row, and what was joined, in words: each site alone if that fits, else
    each layer, else runs of layers; the layer of the first divergence always site by site."""
    own = Site.parse(first[1]).layer if first else None
    deepest = max((site.layer or 0 for site in sites), default=0)
    if len(sites) <= limit:
        return [(site,) for site in sites], []
    for size in range(1, deepest + 2):
        bands = [tuple(run) for _, run in groupby(sites, key=_band_of(own, size))]
        if len(bands) <= limit:
            break
    many = "each layer" if size == 1 else f"up to {size} layers"
    but = "" if own is None else ", except for that of the first divergence"
    return bands, [f"One row holds all sites of {many}{but}."]


def _band_of(own: int | None, size: int) -> Callable[[Site], tuple[int | None, str]]:
    """What the sites of one row have in common, where `size` layers make a row."""

    def band(site: Site) -> tuple[int | None, str]:
        alone = site.layer is None or site.layer == own
        return (site.layer, site.kind) if alone else ((site.layer or 0) // size, "")

    return band


def _prose(band: Sequence[Site]) -> str:
    """The heading of a row on a page: layers count from 1."""
    return band[0].prose if len(band) == 1 else _layers(band)


def _short(band: Sequence[Site]) -> str:
    """The heading of a row in a terminal."""
    site = band[0]
    if len(band) > 1:
        return _layers(band)
    return site.kind if site.layer is None else f"layer {site.layer + 1} {site.kind}"


def _layers(band: Sequence[Site]) -> str:
    layers = [site.layer + 1 for site in band if site.layer is not None]
    if layers[0] == layers[-1]:
        return f"layer {layers[0]}"
    return f"layers {_range(layers[0], layers[-1])}"


# Columns.


def _heads(excess: Excess, case: Case, limit: int) -> tuple[tuple[Head, ...], list[str]]:
    """The finest columns that fit within `limit`, and what was joined for that, in words."""
    columns, joined = next(
        grouping for grouping in _groupings(excess) if _width(grouping[0]) <= limit
    )
    groups = [list(run) for _, run in groupby(columns, key=lambda column: column.steps)]
    words = {step.index: (step.kind, step_in_words(step)) for step in case.steps()}
    return tuple(_head(group, words) for group in groups), joined


def _width(columns: Sequence[Column]) -> int:
    """How many columns wide these are, with the gaps between steps."""
    widths = [len(list(run)) for _, run in groupby(columns, key=lambda column: column.steps)]
    return len(columns) + _gaps(widths)


def _groupings(excess: Excess) -> Iterator[tuple[list[Column], list[str]]]:
    """Columns, coarser and coarser, each with what was joined; at last there is one column.

    First go the earlier positions, which a step does not compute but finds in its cache: in a case
    of many steps they are most of the map, and most of them say the same again.
    """
    positions = _positions(excess)
    computed = _positions(place for place in excess if not place[1].endswith(".cache"))
    yield [Column((s,), (p,)) for s, held in positions.items() for p in held], []
    found = any(len(set(held) - set(computed.get(s, held))) > 1 for s, held in positions.items())
    earlier = ["One column of a step holds all that it finds in its cache."] if found else []
    others = "Others" if found else "Columns"
    for size in range(1, max(map(len, positions.values())) + 1):
        columns = [
            Column((step,), part)
            for step, held in positions.items()
            for part in _parts(held, computed.get(step, held), size)
        ]
        yield columns, [*earlier, *([f"{others} hold up to {size} positions."] if size > 1 else [])]
    steps = list(positions)
    for size in range(1, len(steps) + 1):
        columns = []
        for run in _cut(steps, size):
            held = tuple(sorted(set(chain.from_iterable(positions[step] for step in run))))
            columns.append(Column(run, held))
        many = "each step" if size == 1 else f"up to {size} steps"
        yield columns, [f"One column holds all positions of {many}."]


def _positions(places: Iterable[Place]) -> dict[int, tuple[int, ...]]:
    """The positions that each step has among `places`."""
    found: dict[int, set[int]] = {}
    for step, _, position in places:
        found.setdefault(step, set()).add(position)
    return {step: tuple(sorted(found[step])) for step in sorted(found)}


def _parts(
    held: tuple[int, ...], computed: tuple[int, ...], size: int
) -> Iterator[tuple[int, ...]]:
    """The positions that are only `held`, as one part, and those `computed` in parts of `size`; in
    the order of the positions, so that what is held on both sides makes two parts."""
    for is_new, run in groupby(held, key=set(computed).__contains__):
        part = tuple(run)
        yield from _cut(part, size) if is_new else [part]


def _cut(values: Sequence[int], size: int) -> list[tuple[int, ...]]:
    return [tuple(values[at : at + size]) for at in range(0, len(values), size)]


def _head(columns: Sequence[Column], words: Mapping[int, tuple[str, str]]) -> Head:
    steps = columns[0].steps
    known = [words.get(step, ("beyond the schedule",) * 2) for step in steps]
    kinds = dict.fromkeys(kind for kind, _ in known)
    kind = next(iter(kinds)) if len(kinds) == 1 else "several"
    return Head(steps, kind, ", ".join(dict.fromkeys(said for _, said in known)), tuple(columns))


def _labels(columns: Sequence[Column], room: float) -> tuple[str, ...]:
    """The headings of `columns`, each only where it ends before the next and before the last."""
    labels, free = [], 0.0
    for index, column in enumerate(columns):
        stop = index * room + len(str(column))
        fits = index * room >= free and stop <= len(columns) * room
        labels.append(str(column) if fits else "")
        free = stop + 1 if fits else free
    return tuple(labels)


def _gaps(widths: Sequence[int]) -> int:
    """How many gaps there are between steps of these widths, in columns."""
    return len(widths) - 1 if max(widths) > 1 else 0


def _range(first: int, last: int) -> str:
    return str(first) if first == last else f"{first}-{last}"


# Cells.


def _rows(
    bands: Sequence[tuple[Site, ...]], heads: Sequence[Head], excess: Excess, first: Place | None
) -> tuple[Row, ...]:
    row_of = {str(site): row for row, band in enumerate(bands) for site in band}
    columns = [column for head in heads for column in head.columns]
    column_of = {
        (step, position): index
        for index, column in enumerate(columns)
        for step in column.steps
        for position in column.positions
    }
    places: dict[tuple[int, int], list[Place]] = {}
    for place in excess:
        at = row_of[place[1]], column_of[place[0], place[2]]
        places.setdefault(at, []).append(place)
    return tuple(
        Row(_prose(band), _short(band), _cells(row, heads, places, excess, first))
        for row, band in enumerate(bands)
    )


def _cells(
    row: int,
    heads: Sequence[Head],
    places: Mapping[tuple[int, int], list[Place]],
    excess: Excess,
    first: Place | None,
) -> tuple[Cell, ...]:
    """The cells of a row; neighbours without a state become one, since a cache that grows token by
    token would otherwise be mostly empty cells."""
    cells: list[Cell] = []
    column = 0
    for head in heads:
        inside = [(row, column + offset) for offset in range(len(head.columns))]
        column += len(inside)
        begins = True
        for held, run in groupby(inside, key=places.__contains__):
            made = [_cell(places[at], excess, first) if held else Cell() for at in run]
            made = made if held else [Cell(held=False, span=len(made))]
            cells += [replace(made[0], begins=begins), *made[1:]]
            begins = False
    return tuple(cells)


def _cell(places: Sequence[Place], excess: Excess, first: Place | None) -> Cell:
    worst = max(places, key=excess.__getitem__)
    value = excess[worst]
    marked = first in places
    title = _title(worst, value, len(places))
    if marked and first is not None:
        alone = len(places) == 1
        title = f"first divergence{'' if alone else f' ({_where(first)})'}: {title}"
    return Cell(short(value), title, level(value), math.isinf(value), marked)


def _title(place: Place, value: float, among: int) -> str:
    amount = f"{times(value)} the allowed"
    if math.isinf(value):
        amount = "one path has too few or too many positions here, or is not finite"
    most = f"the most of {among} places, " if among > 1 else ""
    return f"{amount} ({most}{_where(place)})"


def _where(place: Place) -> str:
    step, site, position = place
    text = f"{Site.parse(site).prose}, step {step + 1}"
    return text if position < 0 else f"{text}, position {position}, the {ordinal(position)} token"


def _summary(excess: Excess, first: Place | None) -> str:
    differing = sum(value > 1 for value in excess.values())
    text = f"{differing} of {len(excess)} places differ"
    if first is None:
        return f"{text}."
    return f"{text}. First divergence: {_where(first)}."


def _notes(excess: Excess, first: Place | None, case: Case) -> list[str]:
    """A fault too small for the dtype of the case is located in float64, and the map, in the dtype
    of the case, then shows nothing where the fault begins."""
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
