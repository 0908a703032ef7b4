"""Annotations and a step summary of a score, for GitHub Actions.

Annotations are workflow commands on standard output, with the escapes of
https://docs.github.com/actions/reference/workflow-commands. GitHub shows 10 of each kind per step.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from kvfuzz.errors import UsageError
from mutants.campaign.result import NOT_KILLED, Result
from mutants.library.registry import known
from mutants.report import markdown
from mutants.report.advice import suggest_kill
from mutants.report.markdown import LEAST, LIMIT
from mutants.report.places import place_of
from mutants.report.report import Report
from mutants.report.words import (
    FAULTY,
    describe_fault,
    explain_state,
    sort_for_reading,
    state_words,
    why_no_score,
)

MOST = 10
KINDS = {
    **dict.fromkeys(NOT_KILLED, "error"),
    **dict.fromkeys(FAULTY, "warning"),
}
"""The kind of annotation for each state that has one."""
SUMMARY = "GITHUB_STEP_SUMMARY"
"""The environment variable with the path of the step's summary file."""


def annotation_lines(report: Report) -> list[str]:
    """Returns the lines to print, at most MOST of each kind; if there are more, the last one sums
    up the rest. Changes for the worse since a baseline come first. A fault outside the current
    folder is not part of the repository, so its annotation names no file."""
    score, changed = report.score, report.changed
    lines = []
    if score.percent is None:
        lines.append(_command("error", "no score", why_no_score(score)))
    if changed and changed.worse:
        lines.append(_command("error", "worse than the baseline", "\n".join(changed.lines)))
    for kind in dict.fromkeys(KINDS.values()):
        found = [each for each in sort_for_reading(score) if KINDS.get(each.state) == kind]
        lines += _limited(kind, found, MOST - sum(line.startswith(f"::{kind} ") for line in lines))
    return lines


def summary_file() -> Path | None:
    """Returns the file of the step's summary; None outside GitHub Actions."""
    name = os.environ.get(SUMMARY)
    return Path(name) if name else None


def append_summary(report: Report, path: Path) -> None:
    """Appends the Markdown report to the step's summary at `path`, cut to the room that is left:
    GitHub drops a summary that is too large. With too little room the file stays unchanged. Raises
    UsageError if it cannot be written."""
    try:
        taken = path.stat().st_size if path.exists() else 0
        if LIMIT - taken < LEAST:
            return
        with path.open("a", encoding="utf-8") as stream:
            # A heading must begin a line, and the last line may lack its line break.
            begin = "\n" if taken else ""
            stream.write(begin + markdown.render(report, LIMIT - taken - len(begin)))
    except OSError as error:
        raise UsageError(f"cannot write {path}: {error.strerror or error}") from None


def _limited(kind: str, results: Sequence[Result], most: int) -> list[str]:
    shown = results if len(results) <= most else results[: most - 1]
    lines = [_annotation(kind, result) for result in shown]
    if len(shown) < len(results):
        rest = results[len(shown) :]
        text = f"{', '.join(each.id for each in rest[:MOST])}{' ...' if len(rest) > MOST else ''}"
        lines.append(_command(kind, f"and {len(rest)} more mutants", text))
    return lines


def _annotation(kind: str, result: Result) -> str:
    mutant, place = known(result.id), place_of(result.id)
    reason, advice = explain_state(result), suggest_kill(result, mutant)
    text = f"{describe_fault(mutant)} {reason}; to kill it: {advice}"
    where = {"file": place.file, "line": str(place.start_line), "endLine": str(place.stop_line)}
    title = f"{state_words(result.state)}: {result.id}"
    return _command(kind, title, text, where if place.here else {})


def _command(kind: str, title: str, text: str, where: dict[str, str] | None = None) -> str:
    named = {**(where or {}), "title": title}
    properties = ",".join(f"{name}={_property(value)}" for name, value in named.items())
    return f"::{kind} {properties}::{_text(text)}"


def _text(text: str) -> str:
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _property(text: str) -> str:
    return _text(text).replace(":", "%3A").replace(",", "%2C")
