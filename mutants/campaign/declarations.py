"""What mutants declare of the cases that kill them, held against a campaign in which every case
ran on every mutant."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from kvfuzz.case.case import Case
from kvfuzz.case.features import elements
from mutants.campaign.result import Result
from mutants.library.mutant import Mutant

Unkept = tuple[str, str]
"""A mutant's id, and a word that it declares: its law, or what a killing case has in it."""


def unkept(
    results: Iterable[Result], cases: Sequence[Case], mutants: Iterable[Mutant]
) -> tuple[Unkept, ...]:
    """What killed mutants declare and no kill bears out, of the words that some case has.

    `results` are those of `mutants` on all of `cases`. What was not killed breaks more than this.
    """
    known = {mutant.id: mutant for mutant in mutants}
    return tuple(
        (result.id, word)
        for result in results
        if result.state == "killed" and result.id in known
        for word in _unkept(result, cases, known[result.id])
    )


def _unkept(result: Result, cases: Sequence[Case], mutant: Mutant) -> list[str]:
    fitted = [elements(mutant.fitted(case)) for case in cases]
    drawn = frozenset().union(*fitted)
    shown = frozenset().union(*(fitted[index] for index in result.kills))
    broken = [f"law {mutant.law}"] if mutant.law not in result.laws else []
    return [*broken, *(word for word in mutant.exercises if word in drawn - shown)]
