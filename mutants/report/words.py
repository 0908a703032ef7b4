"""The words for a score that all reports share."""

from __future__ import annotations

import math

from kvfuzz.report.map import times
from kvfuzz.report.text import BASES
from mutants.campaign.result import DECIDED, NOT_KILLED, OUTSIDE, Result, Score, count_states
from mutants.mutant import Mutant

MEANING = {
    "killed": "cached and uncached logits differ by more than the tolerance, or a law is broken",
    "survived": "the faulty code ran, and no case diverged",
    "unreached": "no case ran the code that the fault replaces",
    "timed_out": "it exceeded its limit of time or of forward calls",
    "loud": "it raised an error, which anybody notices without a checker",
    "crashed": "its process died",
    "invalid": "the fault does not fit the subject, or contradicts its own declaration",
    "inapplicable": "the subject has nothing for the fault to change, or lacks what it needs",
    "equivalent": "it cannot change any result, for the reason that it declares",
}
FAULTY = ("loud", "crashed", "invalid")
"""The states in which the mutant itself went wrong: neither a kill nor a miss."""


def state_words(state: str) -> str:
    """Returns a state as people write it."""
    return state.replace("_", " ")


def describe_fault(mutant: Mutant | None) -> str:
    """Returns the description of a fault; a former result may name one that is gone."""
    return mutant.description if mutant else "no longer in the library"


def explain_state(result: Result) -> str:
    """Returns why a mutant is in its state: the kill, its own reason, or what the state means."""
    if result.state != "killed":
        return result.reason or MEANING[result.state]
    far = f", {times(result.excess)} the tolerance" if math.isfinite(result.excess) else ""
    return f"case {result.killed_by} breaks {result.killed_law}{far}"


def narrowness(score: Score, result: Result) -> tuple[float, float, str]:
    """The sort key of mutants of one state: first the one that the fewest cases kill, in a matrix
    campaign, then the one of the smallest excess."""
    return (len(result.kills) if score.matrix else 0, result.excess, result.id)


def sort_for_reading(score: Score) -> list[Result]:
    """Returns the results that count against the score, then those outside it, then the kills,
    the narrowest first."""
    order = (*NOT_KILLED, *OUTSIDE, "killed")
    return sorted(
        score.results, key=lambda each: (order.index(each.state), narrowness(score, each))
    )


def headline(score: Score) -> str:
    """Returns the verdict in one sentence, or why there is no score."""
    counts = count_states(list(score.results))
    decided = sum(counts[state] for state in DECIDED)
    if score.percent is None:
        why = why_no_score(score)
        return why[0].upper() + why[1:]
    if counts["killed"] == decided:
        all_of_them = "All mutants in the score were" if decided > 1 else "The mutant was"
        invalid = counts["invalid"]
        but = f", but {invalid} {'is' if invalid == 1 else 'are'} invalid" if invalid else ""
        return f"{all_of_them} killed{but}."
    others = [f"{counts[state]} {state_words(state)}" for state in NOT_KILLED if counts[state]]
    return f"{counts['killed']} of {decided} mutants were killed: {', '.join(others)}."


def why_no_score(score: Score) -> str:
    """Returns why there is no score."""
    return score.reason or "no mutant could be decided"


def describe_run(score: Score) -> list[tuple[str, str]]:
    """Returns what was run, where, and by which tolerance, as names and values."""
    return [
        ("subject", score.subject),
        ("seed", str(score.seed)),
        ("cases", f"{len(score.cases)}{' (matrix)' if score.matrix else ''}"),
        ("duration", f"{score.seconds:.1f} s"),
        *((name, str(value)) for name, value in score.environment.items()),
        ("tolerance", _tolerance(score)),
        ("calibration", score.calibration or "none"),
    ]


def _tolerance(score: Score) -> str:
    """Returns the source of the tolerance, from the verdicts on the witnesses."""
    verdicts = [result.witness["verdict"] for result in score.results if result.witness]
    found = {verdict["basis"] for verdict in verdicts if verdict.get("basis")}
    return "; ".join(told for basis, told in BASES.items() if basis in found) or "not recorded"
