"""Chooses the rows and the columns of the map of differences, so that it fits.

Rows are sites in the canonical order, columns are positions, grouped by step. A model of many
layers or a case of many tokens has more than a reader can take in: then neighbours are joined.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, groupby

from kvfuzz.case.case import Case
from kvfuzz.report.words import step_in_words
from kvfuzz.subjects.trace import Site

MapPlace = tuple[int, str, int]
"""A step, a site as JSON holds it, and a position."""

Band = tuple[Site, ...]
"""The sites of one row."""


@dataclass(frozen=True)
class MapColumn:
    """The places of one column: its steps and its positions, neighbours each."""

    steps: tuple[int, ...]
    positions: tuple[int, ...]

    def __str__(self) -> str:
        """The positions; a dash for a state without positions, which stands at -1."""
        return "-" if self.positions[-1] < 0 else _range(self.positions[0], self.positions[-1])


@dataclass(frozen=True)
class StepHead:
    """The heading of a group of columns: the `steps` (from 0; several if they are joined), their
    `kind`, the same in `words`, and the columns."""

    steps: tuple[int, ...]
    kind: str
    words: str
    columns: tuple[MapColumn, ...]

    def __str__(self) -> str:
        return _range(self.steps[0] + 1, self.steps[-1] + 1)


# Rows.


def choose_rows(
    sites: Sequence[Site], first: MapPlace | None, limit: int
) -> tuple[list[Band], list[str]]:
    """Returns the sites of each row, and what was joined, in words.

    Each site has its own row if that fits, else each layer has one, else runs of layers. The layer
    of the first divergence always has a row for each site.
    """
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
    """Returns the key that the sites of one row share, where `size` layers make a row."""

    def band(site: Site) -> tuple[int | None, str]:
        alone = site.layer is None or site.layer == own
        return (site.layer, site.kind) if alone else ((site.layer or 0) // size, "")

    return band


def page_heading(band: Band) -> str:
    """Returns the heading of a row on a page; layers count from 1."""
    return band[0].prose if len(band) == 1 else _layers(band)


def terminal_heading(band: Band) -> str:
    """Returns the heading of a row in a terminal."""
    site = band[0]
    if len(band) > 1:
        return _layers(band)
    return site.kind if site.layer is None else f"layer {site.layer + 1} {site.kind}"


def _layers(band: Band) -> str:
    layers = [site.layer + 1 for site in band if site.layer is not None]
    if layers[0] == layers[-1]:
        return f"layer {layers[0]}"
    return f"layers {_range(layers[0], layers[-1])}"


# Columns.


def choose_columns(
    places: Iterable[MapPlace], case: Case, limit: int
) -> tuple[tuple[StepHead, ...], list[str]]:
    """Returns the finest columns that fit within `limit`, and what was joined for that, in
    words."""
    columns, joined = next(
        grouping for grouping in _groupings(list(places)) if _width(grouping[0]) <= limit
    )
    groups = [list(run) for _, run in groupby(columns, key=lambda column: column.steps)]
    words = {step.index: (step.kind, step_in_words(step)) for step in case.steps()}
    return tuple(_head(group, words) for group in groups), joined


def _width(columns: Sequence[MapColumn]) -> int:
    """Returns how many columns wide these are, with the gaps between steps."""
    widths = [len(list(run)) for _, run in groupby(columns, key=lambda column: column.steps)]
    return len(columns) + count_gaps(widths)


def _groupings(places: Sequence[MapPlace]) -> Iterator[tuple[list[MapColumn], list[str]]]:
    """Yields columns, coarser and coarser, each with what was joined; the last is one column.

    The earlier positions, which a step finds in its cache, are joined first. In a case of many
    steps they are most of the map, and most of them repeat what an earlier step shows.
    """
    positions = _positions(places)
    computed = _positions(place for place in places if not place[1].endswith(".cache"))
    yield [MapColumn((s,), (p,)) for s, held in positions.items() for p in held], []
    found = any(len(set(held) - set(computed.get(s, held))) > 1 for s, held in positions.items())
    earlier = ["One column of a step holds all that it finds in its cache."] if found else []
    others = "Others" if found else "Columns"
    for size in range(1, max(map(len, positions.values())) + 1):
        columns = [
            MapColumn((step,), part)
            for step, held in positions.items()
            for part in _parts(held, computed.get(step, held), size)
        ]
        yield columns, [*earlier, *([f"{others} hold up to {size} positions."] if size > 1 else [])]
    steps = list(positions)
    for size in range(1, len(steps) + 1):
        columns = []
        for run in _cut(steps, size):
            held = tuple(sorted(set(chain.from_iterable(positions[step] for step in run))))
            columns.append(MapColumn(run, held))
        many = "each step" if size == 1 else f"up to {size} steps"
        yield columns, [f"One column holds all positions of {many}."]


def _positions(places: Iterable[MapPlace]) -> dict[int, tuple[int, ...]]:
    """Returns the positions that each step has among `places`."""
    found: dict[int, set[int]] = {}
    for step, _, position in places:
        found.setdefault(step, set()).add(position)
    return {step: tuple(sorted(found[step])) for step in sorted(found)}


def _parts(
    held: tuple[int, ...], computed: tuple[int, ...], size: int
) -> Iterator[tuple[int, ...]]:
    """Yields the positions that are only `held`, as one part, and those `computed` in parts of
    `size`. Parts keep the order of positions, so what is held on both sides makes two parts."""
    for is_new, run in groupby(held, key=set(computed).__contains__):
        part = tuple(run)
        yield from _cut(part, size) if is_new else [part]


def _cut(values: Sequence[int], size: int) -> list[tuple[int, ...]]:
    return [tuple(values[at : at + size]) for at in range(0, len(values), size)]


def _head(columns: Sequence[MapColumn], words: Mapping[int, tuple[str, str]]) -> StepHead:
    steps = columns[0].steps
    known = [words.get(step, ("beyond the schedule",) * 2) for step in steps]
    kinds = dict.fromkeys(kind for kind, _ in known)
    kind = next(iter(kinds)) if len(kinds) == 1 else "several"
    return StepHead(
        steps, kind, ", ".join(dict.fromkeys(said for _, said in known)), tuple(columns)
    )


# Labels.


def label_columns(columns: Sequence[MapColumn], room: float) -> tuple[str, ...]:
    """Returns the headings of `columns` that are `room` characters wide each: a heading only where
    it ends before the next and within the last, else an empty one."""
    labels, free = [], 0.0
    for index, column in enumerate(columns):
        stop = index * room + len(str(column))
        fits = index * room >= free and stop <= len(columns) * room
        labels.append(str(column) if fits else "")
        free = stop + 1 if fits else free
    return tuple(labels)


def count_gaps(widths: Sequence[int]) -> int:
    """Returns how many gaps there are between steps of these widths, in columns: none if each step
    is one column."""
    return len(widths) - 1 if max(widths) > 1 else 0


def _range(first: int, last: int) -> str:
    return str(first) if first == last else f"{first}-{last}"
