"""The map of differences in a terminal, which can also be read without colour in a log file."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.text import Text

from kvfuzz.case.case import Case
from kvfuzz.report.map import (
    Cell,
    CellLike,
    DifferenceTable,
    First,
    Limits,
    difference_table,
    level_labels,
)

ROWS = 40
"""More rows than this are joined: a map is to be seen at one glance."""

NARROWEST = 8
"""A map keeps so many columns, whatever the width of the terminal."""

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
"""One for each level of the map, to be seen on light and on dark. Terminals of fewer colours take
the nearest that they have."""

FIRST_STYLE = "bold white on blue"


def terminal_map(cells: Sequence[CellLike], case: Case, first: First) -> RenderableType:
    """The map of the measured `cells` of `case`, as wide as the terminal allows; `first` is the
    first divergence as it was located, None to take the first on the map.

    A place is one character: a dot where the paths agree, a digit for how far they differ, `!`
    where one lacks the position or is not finite, and X at the first divergence.
    """
    return TerminalMap(tuple(cells), case, first)


@dataclass(frozen=True)
class TerminalMap:
    """Draws itself once it knows the width."""

    cells: tuple[CellLike, ...]
    case: Case
    first: First

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        table = self._table(options.max_width)
        if table is None:
            yield Text("no map of differences: the subject does not report its states")
            return
        named = _names(table)
        room = 2 if named + 2 * table.width <= options.max_width else 1
        yield _drawn(table, named, room)
        yield Text(" ".join([table.summary, *table.notes]))
        yield _key()

    def _table(self, width: int) -> DifferenceTable | None:
        """The map for a terminal of `width` characters. The headings of its rows depend on which
        rows there are, which the width does not change."""
        table = difference_table(self.cells, self.case, self.first, Limits(ROWS, NARROWEST))
        if table is None:
            return None
        columns = max(NARROWEST, width - _names(table))
        return difference_table(self.cells, self.case, self.first, Limits(ROWS, columns))


def _names(table: DifferenceTable) -> int:
    """The width of the headings of the rows, with the space after."""
    return max(len("position"), *(len(row.short) for row in table.rows)) + 1


def _drawn(table: DifferenceTable, named: int, room: int) -> RenderableType:
    """All lines: the headings, then one for each row; columns are `room` characters wide."""
    bar = "|" if table.gaps else ""
    widths = [len(head.columns) * room + len(bar) for head in table.heads]
    positions = bar.join(
        _placed(labels, [room] * len(labels)).ljust(len(labels) * room)
        for labels in table.position_labels(room)
    )
    lines = [Text(f"{'step':{named}}{_placed(table.step_labels(room), widths)}", style="dim")]
    if positions.strip(" |"):
        lines.append(Text(f"{'position':{named}}{positions}", style="dim"))
    for row in table.rows:
        line = Text(f"{row.short:{named}}")
        for index, cell in enumerate(row.cells):
            line.append(bar if cell.begins and index else "", style="dim")
            line.append(*_block(cell, room))
        lines.append(line)
    for line in lines:
        line.rstrip()
        line.no_wrap, line.overflow = True, "crop"
    return Group(*lines)


def _placed(labels: Sequence[str], widths: Sequence[int]) -> str:
    """`labels` in one line, each where its column of so many characters begins."""
    line, start = "", 0
    for label, width in zip(labels, widths, strict=True):
        line = line.ljust(start) + label if label else line
        start += width
    return line


def _block(cell: Cell, room: int) -> tuple[str, str]:
    """The characters of `cell`, and their style."""
    if not cell.held:
        return " " * room * cell.span, ""
    if cell.first:
        return FIRST.ljust(room), FIRST_STYLE
    if cell.level is None:
        return AGREES.ljust(room), "dim"
    return (MISSING if cell.missing else str(cell.level + 1)).ljust(room), STYLES[cell.level]


def _key() -> RenderableType:
    """What the characters mean."""
    levels = Text("times the allowed:")
    for index, bound in enumerate(level_labels()):
        levels.append("  ").append(str(index + 1), style=STYLES[index])
        levels.append(f" >{'=' if index else ''}{bound}")
    marks = Text("the largest of the rows:  ")
    marks.append(AGREES, style="dim").append(" agrees  ")
    marks.append(MISSING, style=STYLES[-1]).append(" missing or not finite  ")
    marks.append(FIRST, style=FIRST_STYLE).append(" first divergence")
    return Group(levels, marks)
