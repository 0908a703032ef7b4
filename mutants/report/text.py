"""Prints a score in the terminal: every mutant that was not killed, and one row per operator."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from rich import box
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from kvfuzz.report.words import count
from mutants.campaign.result import (
    DECIDED,
    NOT_BEGUN,
    NOT_KILLED,
    OUTSIDE,
    Result,
    Score,
    count_states,
    percent_text,
)
from mutants.library.registry import known
from mutants.mutant import STATES
from mutants.report.tables import operator_rows
from mutants.report.words import FAULTY


def render(score: Score, console: Console) -> None:
    """Prints `score` to `console`: first the mutants that were not killed, last the score and what
    is not part of it."""

    def say(line: str) -> None:
        console.print(line, soft_wrap=True, highlight=False)

    for state in (*NOT_KILLED, *FAULTY):
        for result in score.results:
            if result.state == state and result.reason != NOT_BEGUN:
                say(result_line(result))
    if late := sum(result.reason == NOT_BEGUN for result in score.results):
        say(f"TIMED OUT {late} not begun: {NOT_BEGUN}; --resume runs them")
    if score.results:
        console.print(_table(score))
    for line in inapplicable_lines(score.results):
        say(line)
    for control in failed_controls(score):
        say(result_line(control))
    say(score_line(score))
    if equivalent := [each.id for each in score.results if each.state == "equivalent"]:
        say(escape(f"equivalent, so that no case can kill them: {', '.join(equivalent)}"))
    if score.calibration:
        say(f"calibration: {score.calibration}")


def failed_controls(score: Score) -> list[Result]:
    """Returns the placebos and canaries that forbid a score."""
    placebos = [one for one in score.placebos if one.state not in ("survived", "unreached")]
    return [*placebos, *(one for one in score.canaries if one.state != "killed")]


def score_line(score: Score) -> str:
    """Returns the score, or why there is none, and which run it is."""
    cases = count(len(score.cases), "case")
    identity = f"{score.subject}, {cases}, seed {score.seed}, {score.seconds:.1f} s"
    if score.percent is None:
        return f"NO SCORE: {score.reason} ({identity})"
    decided = sum(score.counts[state] for state in DECIDED)
    others = [f"{score.counts[state]} {state}" for state in OUTSIDE if score.counts[state]]
    survived = sum(placebo.state == "survived" for placebo in score.placebos)
    controls = f"{count(survived, 'placebo')} survived" if survived else "no placebo ran"
    if canaries := sum(canary.state == "killed" for canary in score.canaries):
        controls += f", {count(canaries, 'canary', 'canaries')} killed"
    outside = f"; not in the score: {', '.join(others)}" if others else ""
    return (
        f"MUTATION SCORE {percent_text(score.percent, 1)}: {score.counts['killed']} of {decided} "
        f"killed, {controls}{outside} ({identity})"
    )


def result_line(result: Result) -> str:
    """Returns the line of a mutant that was not killed: the fault, and why."""
    mutant = known(result.id)
    description = f": {mutant.description}" if mutant else ""
    reason = f" [{result.reason}]" if result.reason else ""
    return escape(f"{result.state.upper()} {result.id}{description}{reason}")


def inapplicable_lines(results: Sequence[Result]) -> list[str]:
    """Returns a line for each thing that the subject lacks, with the number of mutants by operator
    that need it."""
    found: dict[str, Counter[str]] = {}
    for result in results:
        if result.state == "inapplicable":
            found.setdefault(result.reason or "", Counter())[result.operator] += 1
    return [
        escape(f"INAPPLICABLE {', '.join(f'{n} of {name}' for name, n in of.items())}: {reason}")
        for reason, of in sorted(found.items())
    ]


def _table(score: Score) -> Table:
    """One row per operator, with a column for each state that there is."""
    counts = count_states(score.results)
    states = [state for state in STATES if counts[state] or state in ("killed", "survived")]
    table = Table(title="mutants by operator", box=box.SIMPLE_HEAD, padding=0, show_edge=False)
    table.add_column("operator", no_wrap=True)
    for state in states:
        table.add_column(state.replace("_", " "), justify="right", no_wrap=True)
    table.add_column("score", justify="right", no_wrap=True)
    for operator, counts, percent in operator_rows(score.results):
        if operator == "all":
            table.add_section()
        cells = [str(counts[state]) if counts[state] else "." for state in states]
        style = "bold" if operator == "all" else None
        table.add_row(operator, *cells, percent_text(percent, 0), style=style)
    return table
