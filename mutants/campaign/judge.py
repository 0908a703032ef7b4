"""One item of a campaign: a mutant judged, and its kill shrunk and located."""

from __future__ import annotations

from collections.abc import Callable

from mutants.campaign.bench import Bench, Unsound, judged, left_changed
from mutants.campaign.result import NOT_BEGUN, Judged, Result
from mutants.campaign.witness import with_witness
from mutants.library.mutant import Mutant


def judged_item(
    bench: Bench, mutant: Mutant, say: Callable[..., object] = lambda **_: None
) -> Judged:
    """What becomes of `mutant`. What may never return is announced by a call of `say`: with the
    `case` that begins, before each `step` of shrinking and locating, and with the result as far as
    it is `known`; `within` are the seconds of the clean subject, which may be more than a
    mutant's."""

    def step() -> None:
        say(step=True)

    try:
        result = judged(bench, mutant, lambda case: say(case=case))
        if result.state == "killed" and not mutant.canary:
            say(known=result.to_json())
            result = with_witness(bench, mutant, result, step)
        say(known=result.to_json(), within=bench.seconds_for_clean)
        return Judged(result, left_changed(bench, mutant, result))
    except Unsound as unsound:
        reason = str(unsound)
        result = Result(mutant.id, mutant.operator, "invalid", reason=reason)
        return Judged(result, unsound=reason)


def not_begun(mutant: Mutant) -> Judged:
    """`mutant`, for which there was no time left."""
    return Judged(Result(mutant.id, mutant.operator, "timed_out", reason=NOT_BEGUN))
