"""Judges one mutant: runs its cases, finds the witness of a kill, checks the clean subject again.

This is one work item of a campaign, whichever process does it.
"""

from __future__ import annotations

from collections.abc import Callable

from mutants.campaign.prepared_cases import PreparedCases, Unsound
from mutants.campaign.result import NOT_BEGUN, MutantOutcome, Result
from mutants.campaign.run import check_unchanged, run_mutant
from mutants.campaign.witness import add_witness
from mutants.mutant import Mutant


def judge_mutant(
    prepared: PreparedCases, mutant: Mutant, say: Callable[..., object] = lambda **_: None
) -> MutantOutcome:
    """Judges `mutant` and returns the outcome.

    Calls `say` before each part that may never return, so that a parent process can tell where it
    hangs: with the number of the `case` that begins, with each `step` of shrinking and locating,
    and with the result as far as it is `known`. `within` are the seconds that the clean subject
    may take now, which may be more than a mutant's.
    """

    def step() -> None:
        say(step=True)

    try:
        result = run_mutant(prepared, mutant, lambda case: say(case=case))
        if result.state == "killed" and not mutant.canary:
            say(known=result.to_json())
            result = add_witness(prepared, mutant, result, step)
        say(known=result.to_json(), within=prepared.seconds_for_clean)
        return MutantOutcome(result, check_unchanged(prepared, mutant, result))
    except Unsound as unsound:
        reason = str(unsound)
        result = Result(mutant.id, mutant.operator, "invalid", reason=reason)
        return MutantOutcome(result, unsound=reason)


def skip_mutant(mutant: Mutant) -> MutantOutcome:
    """The outcome of a mutant that did not begin before the campaign's time was over."""
    return MutantOutcome(Result(mutant.id, mutant.operator, "timed_out", reason=NOT_BEGUN))
