"""The files that a score is written to: whether they can be written, and writing them.

Light to import, since the command line does: the writers load when there is something to write.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING

from kvfuzz.case.files import check_writable, to_json_text, write_text
from kvfuzz.errors import UsageError

if TYPE_CHECKING:
    from mutants.campaign.gate import Since
    from mutants.campaign.result import Score


@dataclass(frozen=True)
class Outputs:
    """A file for each report that is asked for, None for one that is not. With `github`,
    annotations are printed and the step's summary is written."""

    json_file: Path | None = None
    html_file: Path | None = None
    mutation_file: Path | None = None
    junit_file: Path | None = None
    markdown_file: Path | None = None
    badge_file: Path | None = None
    github: bool = False

    @property
    def files(self) -> tuple[Path, ...]:
        """All that will be written, but for the step's summary."""
        values = (getattr(self, each.name) for each in fields(self))
        return tuple(value for value in values if isinstance(value, Path))


def check_outputs(outputs: Outputs, read: Iterable[Path] = ()) -> None:
    """Refuse what cannot be written, two reports in one file, and one in the place of what is
    `read`, before the work. Raises UsageError."""
    from mutants.report.github import summary_file

    seen: set[str] = set()
    needed = set(map(os.path.realpath, read))
    for file in outputs.files:
        if os.path.realpath(file) in needed:
            raise UsageError(f"{file} is read, and would be written over: write to another file")
        check_writable(file)
        if file.exists() and not file.is_file():
            continue  # a pipe or a device, which takes as many as there are
        where = os.path.realpath(file)
        if where in seen:
            raise UsageError(f"two reports would be written to {file}: name another file for one")
        seen.add(where)
    summary = summary_file() if outputs.github else None
    if summary is not None:
        check_writable(summary)


def write_outputs(
    outputs: Outputs,
    score: Score,
    witnesses: dict[str, Path],
    changed: Since | None = None,
) -> None:
    """Write every report on `score` that is asked for; `witnesses` are the files of its witnesses,
    by mutant, and `changed` what has changed since a baseline, for those that people read. Raises
    UsageError."""
    from mutants.report.badge import badge
    from mutants.report.html import page
    from mutants.report.junit import junit
    from mutants.report.markdown import markdown
    from mutants.report.mutation import mutation_report

    reports: tuple[tuple[Path | None, Callable[[], str]], ...] = (
        (outputs.json_file, lambda: to_json_text(score.to_json(witnesses))),
        (outputs.mutation_file, lambda: to_json_text(mutation_report(score))),
        (outputs.junit_file, lambda: junit(score)),
        (outputs.markdown_file, lambda: markdown(score, changed=changed)),
        (outputs.badge_file, lambda: to_json_text(badge(score))),
        (outputs.html_file, lambda: page(score, witnesses, changed)),
    )
    for file, text in reports:
        if file is not None:
            write_text(file, text())
    if outputs.github:
        _tell_github(score, changed)


def _tell_github(score: Score, changed: Since | None) -> None:
    from mutants.report.github import annotation_lines, append_summary, summary_file

    for line in annotation_lines(score, changed):
        print(line)
    summary = summary_file()
    if summary is not None:
        append_summary(score, summary, changed)
