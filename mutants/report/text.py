"""A score in the terminal: one row per operator, and every mutant that was not killed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from rich import box
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from mutants.campaign.result import (
    BESIDE,
    DECIDED,
    NOT_BEGUN,
    NOT_KILLED,
    Result,
    Score,
    count_states,
    percent_killed,
    percent_text,
)
from mutants.library.registry import known
from mutants.mutant import STATES

SHOWN = tuple(state for state in (*NOT_KILLED, *BESIDE) if state != "inapplicable")
"""The states of which each mutant has a line of its own."""


def render(score: Score, console: Console) -> None:
    """Print `score` to `console`."""
    if score.results:
        console.print(_table(score))
    for state in SHOWN:
        for result in score.results:
            if result.state == state and result.reason != NOT_BEGUN:
                console.print(result_line(result), soft_wrap=True, highlight=False)
    if late := sum(result.reason == NOT_BEGUN for result in score.results):
        text = f"TIMED OUT {late} not begun: {NOT_BEGUN}; --resume goes on with them"
        console.print(text, soft_wrap=True, highlight=False)
    for line in inapplicable_lines(score.results):
        console.print(line, soft_wrap=True, highlight=False)
    for placebo in score.placebos:
        if placebo.state not in ("survived", "unreached"):
            console.print(result_line(placebo), soft_wrap=True, highlight=False)
    console.print(headline(score), soft_wrap=True, highlight=False)
    if score.calibration:
        console.print(f"calibration: {score.calibration}", soft_wrap=True, highlight=False)


def headline(score: Score) -> str:
    """The score, or why there is none, and what would give it again."""
    identity = (
        f"{score.subject}, {len(score.cases)} cases, seed {score.seed}, {score.seconds:.1f} s"
    )
    if score.percent is None:
        return f"NO SCORE: {score.reason} ({identity})"
    decided = sum(score.counts[state] for state in DECIDED)
    beside = [f"{score.counts[state]} {state}" for state in BESIDE if score.counts[state]]
    survived = sum(placebo.state == "survived" for placebo in score.placebos)
    watch = f"{survived} placebos survived" if survived else "no placebo watched"
    outside = f"; not in the score: {', '.join(beside)}" if beside else ""
    return (
        f"MUTATION SCORE {percent_text(score.percent, 1)}: {score.counts['killed']} of {decided} "
        f"killed, {watch}{outside} ({identity})"
    )


def result_line(result: Result) -> str:
    """One mutant that was not killed: what the fault is, and why."""
    mutant = known(result.id)
    description = f": {mutant.description}" if mutant else ""
    reason = f" [{result.reason}]" if result.reason else ""
    return escape(f"{result.state.upper()} {result.id}{description}{reason}")


def inapplicable_lines(results: Sequence[Result]) -> list[str]:
    """What the subject lacks for faults to be put into it, with how many of each operator that
    concerns."""
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
    for operator in sorted({result.operator for result in score.results}):
        results = [result for result in score.results if result.operator == operator]
        table.add_row(operator, *_cells(results, states))
    table.add_section()
    table.add_row("all", *_cells(score.results, states), style="bold")
    return table


def _cells(results: Sequence[Result], states: Sequence[str]) -> list[str]:
    counts = count_states(results)
    shown = [str(counts[state]) if counts[state] else "." for state in states]
    return [*shown, percent_text(percent_killed(counts), 0)]
