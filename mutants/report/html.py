"""A score as one HTML page that needs nothing else: no network, no other file, no JavaScript."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from kvfuzz.report.html import environment
from mutants.campaign.gate import Since
from mutants.campaign.result import (
    BESIDE,
    DECIDED,
    NOT_KILLED,
    Result,
    Score,
    count_states,
    percent_killed,
    percent_text,
)
from mutants.library.registry import known
from mutants.mutant import STATES
from mutants.report.entry import Entry, entry
from mutants.report.tables import barely_killed, examples_to_kill, kill_matrix
from mutants.report.words import MEANING, headline, identity, in_reading_order, words


@dataclass(frozen=True)
class Group:
    """A part of the list of mutants, in the order in which it is read."""

    title: str
    note: str
    entries: tuple[Entry, ...]


def page(score: Score, written: dict[str, Path], changed: Since | None = None) -> str:
    """The report on `score` as one HTML document; `written` are the files of its witnesses, by
    mutant, and `changed` is what has changed since a baseline. The same gives the same page."""
    templates = environment("mutants.report")
    templates.filters.update(percent=percent_text, words=words)
    counts, listed = count_states(list(score.results)), groups(score, written)
    return templates.get_template("page.html.j2").render(
        score=score,
        counts=counts,
        decided=sum(counts[state] for state in DECIDED),
        headline=headline(score),
        since=changed.lines if changed else (),
        identity=identity(score),
        placebos=placebos(score),
        operators=list(_operators(score.results)),
        matrix=kill_matrix(score),
        needed=examples_to_kill(score),
        narrow=barely_killed(score),
        groups=listed,
        alive=[one for group in listed for one in group.entries if one.remedy],
        states=STATES,
        inside=DECIDED,
        beside=BESIDE,
        meaning=MEANING,
    )


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
        entries = tuple(
            entry(score, result, known(result.id), written.get(result.id))
            for result in in_reading_order(score)
            if result.state in states
        )
        if entries:
            made.append(Group(title, note, entries))
    return made


def _order_of_kills(score: Score) -> str:
    if score.matrix:
        return "Those that the fewest cases kill come first."
    return "Those whose first kill exceeds the allowed the least come first."


def _operators(
    results: Sequence[Result],
) -> Iterator[tuple[str, dict[str, int], float | None]]:
    """Each operator with its counts and its score, and all of them at the end."""
    for operator in sorted({result.operator for result in results}):
        counts = count_states([result for result in results if result.operator == operator])
        yield operator, counts, percent_killed(counts)
    if results:
        counts = count_states(list(results))
        yield "all", counts, percent_killed(counts)
