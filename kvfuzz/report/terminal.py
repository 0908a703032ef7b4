"""Draws the map of differences in a terminal; it reads the same without colour, in a log file."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.text import Text

from kvfuzz.case.case import Case
from kvfuzz.report.map import (
    CellLike,
    DifferenceTable,
    FirstDivergence,
    MapCell,
    MapSize,
    difference_table,
    level_labels,
)

ROWS = 40
"""A map has at most this many rows; more are joined, so that it can be seen at a glance."""

NARROWEST = 8
"""A map has at least this many columns, whatever the width of the terminal."""

AGREES, MISSING, FIRST = ".", "!", "X"

STYLES = (
    "black on #ffe08a",
    "black on #fdae61",
    "black on #f46d43",
    "white on #d73027",
    "white on #c51b7d",
    "white on #8e44ad",
    "white on #5e3bb8",
)
"""One for each level of the map, visible on light and on dark backgrounds. Terminals of fewer
colours take the nearest that they have."""

FIRST_STYLE = "bold white on blue"


def terminal_map(cells: Sequence[CellLike], case: Case, first: FirstDivergence) -> RenderableType:
    """Returns the map of the measured `cells` of `case`, as wide as the terminal allows. `first` is
    the located first divergence; with None the first place that differs is marked.

    A place is one character: a dot where the paths agree, a digit for how far they differ, `!`
    where one lacks the position or is not finite, and X at the first divergence.
    """
    return TerminalMap(tuple(cells), case, first)


@dataclass(frozen=True)
class TerminalMap:
    """A map that draws itself once rich tells it the width."""

    cells: tuple[CellLike, ...]
    case: Case
    first: FirstDivergence

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        table = self._table(options.max_width)
        if table is None:
            yield Text("no map of differences: no state could be compared")
            return
        headings = _headings_width(table)
        room = 2 if headings + 2 * table.width <= options.max_width else 1
        yield _draw(table, headings, room)
        yield Text(" ".join([table.summary, *table.notes]))
        yield _key()

    def _table(self, width: int) -> DifferenceTable | None:
        """Returns the map for a terminal of `width` characters. A first map of the narrowest width
        gives the width of the row headings, which does not depend on that of the terminal."""
        table = difference_table(self.cells, self.case, self.first, MapSize(ROWS, NARROWEST))
        if table is None:
            return None
        columns = max(NARROWEST, width - _headings_width(table))
        return difference_table(self.cells, self.case, self.first, MapSize(ROWS, columns))


def _headings_width(table: DifferenceTable) -> int:
    """Returns the width of the headings of the rows, with the space after."""
    return max(len("position"), *(len(row.short) for row in table.rows)) + 1


def _draw(table: DifferenceTable, headings: int, room: int) -> RenderableType:
    """Returns all lines: the headings, then one for each row; columns are `room` characters
    wide."""
    bar = "|" if table.gaps else ""
    widths = [len(head.columns) * room + len(bar) for head in table.heads]
    positions = bar.join(
        _place_labels(labels, [room] * len(labels)).ljust(len(labels) * room)
        for labels in table.position_labels(room)
    )
    lines = [
        Text(f"{'step':{headings}}{_place_labels(table.step_labels(room), widths)}", style="dim")
    ]
    if positions.strip(" |"):
        lines.append(Text(f"{'position':{headings}}{positions}", style="dim"))
    for row in table.rows:
        line = Text(f"{row.short:{headings}}")
        for index, cell in enumerate(row.cells):
            line.append(bar if cell.begins and index else "", style="dim")
            line.append(*_block(cell, room))
        lines.append(line)
    for line in lines:
        line.rstrip()
        line.no_wrap, line.overflow = True, "crop"
    return Group(*lines)


def _place_labels(labels: Sequence[str], widths: Sequence[int]) -> str:
    """Returns `labels` in one line, each where its column of that width begins."""
    line, start = "", 0
    for label, width in zip(labels, widths, strict=True):
        line = line.ljust(start) + label if label else line
        start += width
    return line


def _block(cell: MapCell, room: int) -> tuple[str, str]:
    """Returns the characters of `cell` and their style."""
    if not cell.held:
        return " " * room * cell.span, ""
    if cell.first:
        return FIRST.ljust(room), FIRST_STYLE
    if cell.level is None:
        return AGREES.ljust(room), "dim"
    return (MISSING if cell.missing else str(cell.level + 1)).ljust(room), STYLES[cell.level]


def _key() -> RenderableType:
    """Returns the key of the map."""
    levels = Text("times the allowed:")
    for index, bound in enumerate(level_labels()):
        levels.append("  ").append(str(index + 1), style=STYLES[index])
        levels.append(f" >{'=' if index else ''}{bound}")
    marks = Text("the largest of the rows:  ")
    marks.append(AGREES, style="dim").append(" agrees  ")
    marks.append(MISSING, style=STYLES[-1]).append(" missing or not finite  ")
    marks.append(FIRST, style=FIRST_STYLE).append(" first divergence")
    return Group(levels, marks)
