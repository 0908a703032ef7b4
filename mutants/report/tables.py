"""What the HTML page shows of all mutants at once: the kill matrix, how many cases a kill took, and
the kills that were nearest to none."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass
from itertools import pairwise

from kvfuzz.case.features import FAMILIES, family
from kvfuzz.oracle.laws import LAWS
from mutants.campaign.result import Result, Score
from mutants.mutant import VACUITY
from mutants.report.words import in_reading_order

BOUNDS = (1, 2, 3, 6, 11, 21, 51, 101, 201, 501)
"""The smallest number of cases of each bar of the histogram."""
NARROW = 10
"""How many narrow kills are listed."""
SHADES = 4


@dataclass(frozen=True)
class Column:
    """A family of schedules with its number of `cases`, or a law, which may be broken in any."""

    kind: str
    name: str
    cases: int


@dataclass(frozen=True)
class Square:
    """How many cases kill a mutant, of those in its column that it met; `shade` is their share,
    from 0 for none to SHADES for all."""

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
    """Mutants by what kills them: families of schedules, then laws."""

    columns: tuple[Column, ...]
    rows: tuple[Row, ...]


@dataclass(frozen=True)
class Bar:
    """How many `mutants` met so many cases until the first that killed them; `share` of the longest
    bar."""

    label: str
    mutants: int
    share: float


def kill_matrix(score: Score) -> Matrix | None:
    """Which families of schedules kill which mutants, and by which laws; None unless every case was
    run on every mutant. A case is held to agreement first, and where that sees nothing to the law
    that the mutant declares."""
    if not score.matrix or not score.results:
        return None
    families = [family(case) for case in score.cases]
    cases = Counter(families)
    broken = {law for result in score.results for law in result.laws}
    by_family = [Column("family", name, cases[name]) for name in FAMILIES if cases[name]]
    by_law = [Column("law", law, len(families)) for law in (*LAWS, VACUITY) if law in broken]

    def row(result: Result) -> Row:
        met = Counter(families[: result.ran])
        kills = Counter(families[index] for index in result.kills)
        laws = Counter(result.laws)
        squares = [Square(kills[column.name], met[column.name]) for column in by_family]
        squares += [Square(laws[column.name], result.ran) for column in by_law]
        return Row(result, tuple(squares))

    rows = [row(result) for result in in_reading_order(score)]
    return Matrix((*by_family, *by_law), tuple(rows))


def examples_to_kill(score: Score) -> list[Bar]:
    """The histogram of the cases that it took to kill each mutant, up to the last bar that is not
    empty; no bars where nothing was killed. A mutant that stops at its first kill meets the cases
    in an order of its own, so that what counts is how many it met; one that meets all meets them as
    they were drawn."""
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
    """The kills of the smallest excess: those that a little more tolerance would have missed."""
    killed = [each for each in score.results if each.state == "killed"]
    measured = [each for each in killed if math.isfinite(each.excess)]
    return sorted(measured, key=lambda each: (each.excess, each.id))[:NARROW]


def _label(low: float, high: float) -> str:
    if math.isinf(high):
        return f"{low} and more"
    return f"{low}" if high == low + 1 else f"{low} to {high - 1}"
