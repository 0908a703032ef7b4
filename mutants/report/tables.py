"""Tables over all mutants of a score: by operator, the kill matrix, how many cases a kill took, and
the narrowest kills."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

from kvfuzz.case.features import FAMILIES, family
from kvfuzz.oracle.laws import LAWS
from mutants.campaign.result import Result, Score, count_states, percent_killed
from mutants.mutant import VACUITY
from mutants.report.words import sort_for_reading

BOUNDS = (1, 2, 3, 6, 11, 21, 51, 101, 201, 501)
"""The smallest number of cases of each bar of the histogram."""
NARROW = 10
"""How many narrow kills are listed."""
SHADES = 4


@dataclass(frozen=True)
class Column:
    """A family of schedules with its number of `cases`, or a law, which any case may break."""

    kind: str
    name: str
    cases: int


@dataclass(frozen=True)
class Square:
    """How many of the cases that the mutant `ran` in a column kill it; `shade` is their share, from
    0 for none to SHADES for all."""

    kills: int
    ran: int

    @property
    def shade(self) -> int:
        return math.ceil(SHADES * self.kills / self.ran) if self.ran else 0


@dataclass(frozen=True)
class Row:
    """A mutant with a square for each column."""

    result: Result
    squares: tuple[Square, ...]


@dataclass(frozen=True)
class Matrix:
    """Which families of schedules, and then which laws, kill which mutants."""

    columns: tuple[Column, ...]
    rows: tuple[Row, ...]


@dataclass(frozen=True)
class Bar:
    """How many `mutants` ran this many cases until the first kill; `share` of the longest bar."""

    label: str
    mutants: int
    share: float


def operator_rows(
    results: Sequence[Result],
) -> Iterator[tuple[str, dict[str, int], float | None]]:
    """Yields each operator with its counts by state and its score, and `all` at the end."""
    for operator in sorted({result.operator for result in results}):
        counts = count_states([result for result in results if result.operator == operator])
        yield operator, counts, percent_killed(counts)
    if results:
        counts = count_states(results)
        yield "all", counts, percent_killed(counts)


def kill_matrix(score: Score) -> Matrix | None:
    """Returns which families of schedules and which laws kill which mutants; None unless every case
    ran on every mutant. A case is judged by agreement first and, if that sees nothing, by the law
    that the mutant declares."""
    if not score.matrix or not score.results:
        return None
    families = [family(case) for case in score.cases]
    cases = Counter(families)
    broken = {law for result in score.results for law in result.laws}
    by_family = [Column("family", name, cases[name]) for name in FAMILIES if cases[name]]
    by_law = [Column("law", law, len(families)) for law in (*LAWS, VACUITY) if law in broken]

    def row(result: Result) -> Row:
        ran = Counter(families[: result.ran])
        kills = Counter(families[index] for index in result.kills)
        laws = Counter(result.laws)
        squares = [Square(kills[column.name], ran[column.name]) for column in by_family]
        squares += [Square(laws[column.name], result.ran) for column in by_law]
        return Row(result, tuple(squares))

    rows = [row(result) for result in sort_for_reading(score)]
    return Matrix((*by_family, *by_law), tuple(rows))


def examples_to_kill(score: Score) -> list[Bar]:
    """Returns the histogram of the cases that each kill took, up to the last bar that is not empty;
    no bars if nothing was killed. A mutant that stops at its first kill runs the cases in its own
    order, so the number that it ran counts; in a matrix it runs them as drawn."""
    killed = [each for each in score.results if each.state == "killed"]
    needed = [
        each.killed_by + 1 if score.matrix else each.ran
        for each in killed
        if each.killed_by is not None
    ]
    if not needed:
        return []
    bounds = [*(bound for bound in BOUNDS if bound <= max(needed)), math.inf]
    counts = [
        (low, high, sum(low <= number < high for number in needed))
        for low, high in pairwise(bounds)
    ]
    most = max(count for _, _, count in counts)
    return [Bar(_label(low, high), count, count / most) for low, high, count in counts]


def barely_killed(score: Score) -> list[Result]:
    """Returns the kills of the smallest excess, which a slightly larger tolerance would miss."""
    killed = [each for each in score.results if each.state == "killed"]
    measured = [each for each in killed if math.isfinite(each.excess)]
    return sorted(measured, key=lambda each: (each.excess, each.id))[:NARROW]


def _label(low: float, high: float) -> str:
    if math.isinf(high):
        return f"{low} and more"
    return f"{low}" if high == low + 1 else f"{low} to {high - 1}"
