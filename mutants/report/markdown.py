"""A score as Markdown for the summary of a CI step: what was not killed first, and never larger
than such a summary may be."""

from __future__ import annotations

import re
from collections.abc import Sequence

from mutants.campaign.gate import Since
from mutants.campaign.result import Result, Score, percent_text
from mutants.library.registry import known
from mutants.mutant import STATES
from mutants.report.advice import hunt_command, would_kill
from mutants.report.words import headline, identity, in_reading_order, outcome, words

LIMIT = 1_000_000
"""Bytes of a summary: GitHub takes 1 MiB (1,048,576) of one step."""
LEAST = 50_000
"""Bytes that the part before the list of mutants fits into, whatever is in it."""
LONGEST = 300
"""Letters of one text that are shown: an error may quote a page."""
LONGEST_COMMAND = 4000
"""A command is of use only whole."""
LINES = 20
"""Lines of one list that are shown: of what has changed since a baseline."""
LEFT_OUT = 100
"""Bytes that are kept free for the line that says how many mutants were left out."""
SPECIAL = re.compile(r"[^\w\s.,:;/=()%'\"?!+-]|(?<![^\W_])_|_(?![^\W_])")
"""What may mean something to Markdown or HTML inside a line, and is written as an entity."""
HEADER = "| mutant | state | fault | why | would kill it |\n|---|---|---|---|---|\n"


def markdown(score: Score, limit: int = LIMIT, changed: Since | None = None) -> str:
    """`score` as Markdown of at most `limit` bytes in UTF-8 (LEAST or more): the verdict, what has
    `changed` since a baseline, the counts, the run's identity, and as many mutants as there is room
    for, those not killed first."""
    head, results = _head(score, changed), in_reading_order(score)
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
        parts.append(f"\n{left_out} mutants were left out here.\n")
    return "".join(parts)


def escaped(text: str, longest: int = LONGEST) -> str:
    """`text` in one line of at most `longest` letters, which means nothing to Markdown or HTML."""
    line = " ".join(text.split())
    line = line if len(line) <= longest else f"{line[: longest - 3]}..."
    return SPECIAL.sub(lambda found: f"&#{ord(found[0])};", line)


def code(text: str, longest: int = LONGEST) -> str:
    """`text` in one line, as code."""
    return f"<code>{escaped(text, longest)}</code>"


def _head(score: Score, changed: Since | None) -> str:
    title = "No score" if score.percent is None else percent_text(score.percent, 1)
    lines = [
        f"## {escaped(title)}: KV cache mutation score of {code(score.subject)}",
        f"{escaped(headline(score))} Verdict: {score.verdict}.",
        *([_list("Since the baseline", changed.lines)] if changed else []),
        f"The same again: {code(score.command, LONGEST_COMMAND)}",
        _counts(score),
        _identity(score),
    ]
    return "\n\n".join(lines) + "\n\n"


def _list(title: str, told: Sequence[str]) -> str:
    """What is `told` under its title, in at most LINES lines."""
    lines = [f"- {escaped(line)}" for line in told[:LINES]]
    if len(told) > LINES:
        lines.append(f"- and {len(told) - LINES} more")
    return "\n".join([f"**{title}**\n", *lines])


def _counts(score: Score) -> str:
    head = " | ".join(map(words, STATES))
    numbers = " | ".join(str(score.counts.get(state, 0)) for state in STATES)
    return f"| {head} |\n|{'---:|' * len(STATES)}\n| {numbers} |"


def _identity(score: Score) -> str:
    return "; ".join(f"{escaped(name)} {code(value)}" for name, value in identity(score))


def _row(score: Score, result: Result) -> str:
    mutant = known(result.id)
    fault = mutant.description if mutant else "no longer in the library"
    remedy = ""
    if result.state != "killed":
        hunt = code(hunt_command(score, result, mutant))
        remedy = f"{escaped(would_kill(result, mutant))}; hunt it: {hunt}"
    state = f"**{words(result.state)}**" if result.state != "killed" else words(result.state)
    cells = [code(result.id), state, escaped(fault), escaped(outcome(result)), remedy]
    return f"| {' | '.join(cells)} |\n"
