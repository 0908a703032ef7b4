"""The HTML report of a score: one page that needs no network, no other file and no JavaScript."""

from __future__ import annotations

from dataclasses import dataclass

from kvfuzz.report.html import environment
from mutants.campaign.result import (
    DECIDED,
    NOT_KILLED,
    OUTSIDE,
    Score,
    count_states,
    percent_text,
)
from mutants.library.registry import known
from mutants.mutant import STATES
from mutants.report.entry import Entry, entry
from mutants.report.report import Report
from mutants.report.tables import barely_killed, examples_to_kill, kill_matrix, operator_rows
from mutants.report.words import MEANING, describe_run, headline, sort_for_reading, state_words


@dataclass(frozen=True)
class Group:
    """A part of the list of mutants, in reading order."""

    title: str
    note: str
    entries: tuple[Entry, ...]


def render(report: Report) -> str:
    """Returns the page. The same report gives the same page."""
    score, changed = report.score, report.changed
    templates = environment("mutants.report")
    templates.filters.update(percent=percent_text, words=state_words)
    counts, listed = count_states(list(score.results)), groups(report)
    return templates.get_template("page.html.j2").render(
        score=score,
        counts=counts,
        decided=sum(counts[state] for state in DECIDED),
        headline=headline(score),
        since=changed.lines if changed else (),
        run=describe_run(score),
        placebos=placebos(score),
        operators=list(operator_rows(score.results)),
        matrix=kill_matrix(score),
        needed=examples_to_kill(score),
        narrow=barely_killed(score),
        groups=listed,
        alive=[one for group in listed for one in group.entries if one.remedy],
        states=STATES,
        inside=DECIDED,
        outside=OUTSIDE,
        meaning=MEANING,
    )


def placebos(score: Score) -> str | None:
    """Returns what the placebos show; None if none was run."""
    if not score.placebos:
        return None
    if all(placebo.state in ("survived", "unreached") for placebo in score.placebos):
        return "None was killed: the checker raises no false alarm."
    return "No score: a placebo was killed, so the checker raises false alarms."


def groups(report: Report) -> list[Group]:
    """Returns the mutants that count against the score, then those outside it, then the kills, the
    narrowest first."""
    score = report.score
    parts = [
        ("Not killed", "These count against the score.", NOT_KILLED),
        ("Outside the score", "These count neither for nor against it.", OUTSIDE),
        ("Killed", _order_of_kills(score), ("killed",)),
    ]
    made = []
    for title, note, states in parts:
        entries = tuple(
            entry(score, result, known(result.id), report.witnesses.get(result.id))
            for result in sort_for_reading(score)
            if result.state in states
        )
        if entries:
            made.append(Group(title, note, entries))
    return made


def _order_of_kills(score: Score) -> str:
    if score.matrix:
        return "Those killed by the fewest cases come first."
    return "Those whose first kill exceeds the tolerance least come first."
