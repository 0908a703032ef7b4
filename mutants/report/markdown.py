"""The Markdown report of a score, for the summary of a CI step: mutants that were not killed come
first, and the size stays below what a summary may have."""

from __future__ import annotations

import re
from collections.abc import Sequence

from mutants.campaign.result import Result, Score, percent_text
from mutants.library.registry import known
from mutants.mutant import STATES
from mutants.report.advice import fuzz_command, suggest_kill
from mutants.report.report import Report
from mutants.report.words import (
    describe_fault,
    describe_run,
    explain_state,
    headline,
    sort_for_reading,
    state_words,
)

LIMIT = 1_000_000
"""Bytes of a summary: GitHub takes 1 MiB (1,048,576) of one step."""
LEAST = 50_000
"""Bytes that always suffice for the part before the list of mutants."""
LONGEST = 300
"""Characters shown of one text: an error may quote a page."""
LONGEST_COMMAND = 4000
"""Characters shown of a command, which is only useful whole."""
LINES = 20
"""Lines shown of the changes since a baseline."""
LEFT_OUT = 100
"""Bytes reserved for the line that counts the mutants left out."""
SPECIAL = re.compile(r"[^\w\s.,:;/=()%'\"?!+-]|(?<![^\W_])_|_(?![^\W_])")
"""Characters that Markdown or HTML may interpret inside a line; they are written as entities."""
HEADER = "| mutant | state | fault | why | to kill it |\n|---|---|---|---|---|\n"


def render(report: Report, limit: int = LIMIT) -> str:
    """Returns the score as Markdown of at most `limit` bytes in UTF-8 (LEAST or more): the verdict,
    the changes since a baseline, the counts, the run, and as many mutants as there is room for."""
    score = report.score
    head, results = _head(report), sort_for_reading(score)
    room = limit - LEFT_OUT - len(f"{head}{HEADER}".encode())
    kept: list[str] = []
    for result in results:
        row = _row(score, result)
        room -= len(row.encode())
        if room < 0:
            break
        kept.append(row)
    parts = [head, HEADER, *kept] if kept else [head]
    if len(kept) < len(results):
        left_out = f"{len(results) - len(kept)} of {len(results)}"
        parts.append(f"\n{left_out} mutants are left out here.\n")
    return "".join(parts)


def escaped(text: str, longest: int = LONGEST) -> str:
    """Returns `text` in one line of at most `longest` characters, escaped for Markdown and HTML."""
    line = " ".join(text.split())
    line = line if len(line) <= longest else f"{line[: longest - 3]}..."
    return SPECIAL.sub(lambda found: f"&#{ord(found[0])};", line)


def code(text: str, longest: int = LONGEST) -> str:
    """Returns `text` in one line, as code."""
    return f"<code>{escaped(text, longest)}</code>"


def _head(report: Report) -> str:
    score, changed = report.score, report.changed
    title = "No score" if score.percent is None else percent_text(score.percent, 1)
    lines = [
        f"## {escaped(title)}: KV cache mutation score of {code(score.subject)}",
        f"{escaped(headline(score))} Verdict: {score.verdict}.",
        *([_list("Since the baseline", changed.lines)] if changed else []),
        f"Run it again: {code(score.command, LONGEST_COMMAND)}",
        _counts(score),
        _run(score),
    ]
    return "\n\n".join(lines) + "\n\n"


def _list(title: str, items: Sequence[str]) -> str:
    """Returns `items` under a title, at most LINES of them."""
    lines = [f"- {escaped(line)}" for line in items[:LINES]]
    if len(items) > LINES:
        lines.append(f"- and {len(items) - LINES} more")
    return "\n".join([f"**{title}**\n", *lines])


def _counts(score: Score) -> str:
    head = " | ".join(map(state_words, STATES))
    numbers = " | ".join(str(score.counts.get(state, 0)) for state in STATES)
    return f"| {head} |\n|{'---:|' * len(STATES)}\n| {numbers} |"


def _run(score: Score) -> str:
    return "; ".join(f"{escaped(name)} {code(value)}" for name, value in describe_run(score))


def _row(score: Score, result: Result) -> str:
    mutant = known(result.id)
    state, remedy = state_words(result.state), ""
    if result.state != "killed":
        state = f"**{state}**"
        command = code(fuzz_command(score, result, mutant))
        remedy = f"{escaped(suggest_kill(result, mutant))}; to fuzz it: {command}"
    fault, why = escaped(describe_fault(mutant)), escaped(explain_state(result))
    cells = [code(result.id), state, fault, why, remedy]
    return f"| {' | '.join(cells)} |\n"
