"""A score as one HTML page that needs nothing else: no network, no other file, no JavaScript."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from kvfuzz.report.html import environment
from mutants.mutant import STATES
from mutants.registry import everything
from mutants.report.entry import Entry, entry
from mutants.result import (
    DECIDED,
    NOT_KILLED,
    Result,
    Score,
    counted,
    percent_killed,
    percent_text,
)

BESIDE = tuple(state for state in STATES if state not in DECIDED)
MEANING = {
    "killed": "cached and uncached logits differ by more than is allowed",
    "survived": "the faulty code ran, and no case told the paths apart",
    "unreached": "no case ran the code that the fault replaces",
    "timed_out": "it took longer than it may",
    "loud": "it raised, so that no checker is needed to see it",
    "invalid": "the fault does not fit the subject, or breaks its own promise",
    "equivalent": "declared or measured, with a reason, to change nothing that can be seen",
    "inapplicable": "the subject has nothing for the fault to change, or lacks what it needs",
}


@dataclass(frozen=True)
class Group:
    """A part of the list of mutants, in the order in which it is read."""

    title: str
    note: str
    entries: tuple[Entry, ...]


def page(score: Score, written: dict[str, Path]) -> str:
    """The report on `score` as one HTML document; `written` are the files of its witnesses, by
    mutant. The same score gives the same page."""
    templates = environment("mutants.report")
    templates.filters.update(percent=percent_text, words=words)
    counts = counted(list(score.results))
    return templates.get_template("page.html.j2").render(
        score=score,
        counts=counts,
        decided=sum(counts[state] for state in DECIDED),
        headline=headline(score),
        identity=identity(score),
        placebos=placebos(score),
        operators=list(_operators(score.results)),
        groups=groups(score, written),
        states=STATES,
        inside=DECIDED,
        beside=BESIDE,
        meaning=MEANING,
    )


def headline(score: Score) -> str:
    """The verdict in one sentence, or why there is none."""
    counts = counted(list(score.results))
    decided = sum(counts[state] for state in DECIDED)
    if score.percent is None:
        reason = score.reason or "no mutant could be decided"
        return reason[0].upper() + reason[1:]
    if score.verdict == "killed":
        return "All mutants in the score were killed." if decided > 1 else "The mutant was killed."
    others = [f"{counts[state]} {words(state)}" for state in NOT_KILLED if counts[state]]
    return f"{counts['killed']} of {decided} mutants were killed: {', '.join(others)}."


def identity(score: Score) -> list[tuple[str, str]]:
    """What was run, and where."""
    return [
        ("subject", score.subject),
        ("seed", str(score.seed)),
        ("cases", f"{len(score.cases)}{' (matrix)' if score.matrix else ''}"),
        ("duration", f"{score.seconds:.1f} s"),
        *((name, str(value)) for name, value in score.environment.items()),
        ("calibration", score.calibration or "none"),
    ]


def placebos(score: Score) -> str | None:
    """What the placebos show; None if none was run."""
    if not score.placebos:
        return None
    if all(placebo.state in ("survived", "unreached") for placebo in score.placebos):
        return "None was killed: the checker stays silent where nothing is wrong."
    return "A placebo that does not survive forbids a score: the checker cries wolf, or cannot see."


def groups(score: Score, written: dict[str, Path]) -> list[Group]:
    """The mutants: first those that count against the score, then those beside it, then the
    killed ones, the most narrowly killed first."""
    parts = [
        ("Not killed", "These count against the score.", NOT_KILLED),
        ("Beside the score", "Neither for nor against it.", BESIDE),
        ("Killed", _order_of_kills(score), ("killed",)),
    ]
    made = []
    for title, note, states in parts:
        results = sorted(
            (result for result in score.results if result.state in states),
            key=lambda result: (states.index(result.state), *_narrowness(score, result)),
        )
        entries = tuple(
            entry(score, result, everything().get(result.id), written.get(result.id))
            for result in results
        )
        if entries:
            made.append(Group(title, note, entries))
    return made


def words(state: str) -> str:
    """A state as people say it."""
    return state.replace("_", " ")


def _narrowness(score: Score, result: Result) -> tuple[float, float, str]:
    return (len(result.kills) if score.matrix else 0, result.excess, result.id)


def _order_of_kills(score: Score) -> str:
    if score.matrix:
        return "Those that the fewest cases kill come first."
    return "Those whose first kill exceeds the allowed the least come first."


def _operators(
    results: Sequence[Result],
) -> Iterator[tuple[str, dict[str, int], float | None]]:
    """Each operator with its counts and its score, and all of them at the end."""
    for operator in sorted({result.operator for result in results}):
        counts = counted([result for result in results if result.operator == operator])
        yield operator, counts, percent_killed(counts)
    if results:
        counts = counted(list(results))
        yield "all", counts, percent_killed(counts)
