"""A score as GitHub Actions shows it: annotations on standard output, and the step's summary.

Workflow commands and their escapes: https://docs.github.com/actions/reference/workflow-commands.
Of each kind GitHub shows 10 in a step.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from kvfuzz.errors import UsageError
from mutants.campaign.gate import Since
from mutants.campaign.result import NOT_KILLED, Result, Score
from mutants.library.registry import known
from mutants.report.advice import would_kill
from mutants.report.markdown import LEAST, LIMIT, markdown
from mutants.report.places import place_of
from mutants.report.words import in_reading_order, outcome, words

MOST = 10
KINDS = {
    **dict.fromkeys(NOT_KILLED, "error"),
    **dict.fromkeys(("loud", "crashed", "invalid"), "warning"),
}
"""The kind of annotation for each state that has one."""
SUMMARY = "GITHUB_STEP_SUMMARY"
"""The environment variable that holds the file of the step's summary."""


def annotation_lines(score: Score, changed: Since | None = None) -> list[str]:
    """The lines to print, at most MOST of each kind: the last of them sums up those that there was
    no room for. The first tells what has `changed` since a baseline, if that is for the worse.
    Faults outside the present folder are no part of the repository, and have no
    place."""
    lines = []
    if score.percent is None:
        lines.append(_command("error", "no score", score.reason or "no mutant could be decided"))
    if changed and changed.worse:
        lines.append(_command("error", "worse than the baseline", "\n".join(changed.lines)))
    for kind in dict.fromkeys(KINDS.values()):
        found = [each for each in in_reading_order(score) if KINDS.get(each.state) == kind]
        lines += _limited(kind, found, MOST - sum(line.startswith(f"::{kind} ") for line in lines))
    return lines


def summary_file() -> Path | None:
    """Where the step's summary goes; None outside GitHub Actions."""
    name = os.environ.get(SUMMARY)
    return Path(name) if name else None


def append_summary(score: Score, path: Path, changed: Since | None = None) -> None:
    """Add `score`, and what has `changed` since a baseline, to the summary at `path`, which other
    commands of the step may have begun, as far as there is room in it: with too little it is left
    as it is, since GitHub drops one that is too large whole. Raises UsageError if it cannot be
    written."""
    try:
        taken = path.stat().st_size if path.exists() else 0
        if LIMIT - taken < LEAST:
            return
        with path.open("a", encoding="utf-8") as stream:
            # A heading has to begin a line, and what stands there may not have ended its last one.
            begin = "\n" if taken else ""
            stream.write(begin + markdown(score, LIMIT - taken - len(begin), changed))
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
    fault = mutant.description if mutant else "no longer in the library"
    text = f"{fault} {outcome(result)}; would kill it: {would_kill(result, mutant)}"
    where = {"file": place.file, "line": str(place.start_line), "endLine": str(place.stop_line)}
    title = f"{words(result.state)}: {result.id}"
    return _command(kind, title, text, where if place.here else {})


def _command(kind: str, title: str, text: str, where: dict[str, str] | None = None) -> str:
    told = {**(where or {}), "title": title}
    properties = ",".join(f"{name}={_property(value)}" for name, value in told.items())
    return f"::{kind} {properties}::{_text(text)}"


def _text(text: str) -> str:
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _property(text: str) -> str:
    return _text(text).replace(":", "%3A").replace(",", "%2C")
