"""A score in words that every report shares."""

from __future__ import annotations

import math

from kvfuzz.report.map import times
from kvfuzz.report.text import BASES
from mutants.campaign.result import BESIDE, DECIDED, NOT_KILLED, Result, Score, count_states

MEANING = {
    "killed": "cached and uncached logits differ by more than is allowed",
    "survived": "the faulty code ran, and no case told the paths apart",
    "unreached": "no case ran the code that the fault replaces",
    "timed_out": "it took longer than it may",
    "loud": "it raised, so that no checker is needed to see it",
    "crashed": "its process died, and nothing is known about it",
    "invalid": "the fault does not fit the subject, or breaks its own promise",
    "inapplicable": "the subject has nothing for the fault to change, or lacks what it needs",
    "equivalent": "declared, with a reason, to change nothing that can be seen",
}


def words(state: str) -> str:
    """A state as people say it."""
    return state.replace("_", " ")


def outcome(result: Result) -> str:
    """Why a mutant is in its state: the kill, its own reason, or what the state means."""
    if result.state != "killed":
        return result.reason or MEANING[result.state]
    far = f", {times(result.excess)} the allowed" if math.isfinite(result.excess) else ""
    return f"case {result.killed_by} breaks {result.killed_law}{far}"


def narrowness(score: Score, result: Result) -> tuple[float, float, str]:
    """The order in which mutants of a state are told: the one that the fewest cases kill first,
    where all were run, and then that of the smallest excess."""
    return (len(result.kills) if score.matrix else 0, result.excess, result.id)


def in_reading_order(score: Score) -> list[Result]:
    """The results: first those that count against the score, then those beside it, then the
    killed ones, of which the most narrowly killed come first."""
    order = (*NOT_KILLED, *BESIDE, "killed")
    return sorted(
        score.results, key=lambda each: (order.index(each.state), narrowness(score, each))
    )


def headline(score: Score) -> str:
    """The verdict in one sentence, or why there is none."""
    counts = count_states(list(score.results))
    decided = sum(counts[state] for state in DECIDED)
    if score.percent is None:
        why = score.reason or "no mutant could be decided"
        return why[0].upper() + why[1:]
    if counts["killed"] == decided:
        all_of_them = "All mutants in the score were" if decided > 1 else "The mutant was"
        invalid = counts["invalid"]
        but = f", but {invalid} {'is' if invalid == 1 else 'are'} invalid" if invalid else ""
        return f"{all_of_them} killed{but}."
    others = [f"{counts[state]} {words(state)}" for state in NOT_KILLED if counts[state]]
    return f"{counts['killed']} of {decided} mutants were killed: {', '.join(others)}."


def identity(score: Score) -> list[tuple[str, str]]:
    """What was run, where, and what was allowed."""
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
    """Where what was allowed came from, as the verdicts on the witnesses say."""
    verdicts = [result.witness["verdict"] for result in score.results if result.witness]
    found = {verdict["basis"] for verdict in verdicts if verdict.get("basis")}
    return "; ".join(told for basis, told in BASES.items() if basis in found) or "not recorded"
