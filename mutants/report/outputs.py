"""The reports of a score that go to files: which there are, and writing them.

Imports only what `--help` needs before a report is written: the command line imports this file.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING

from kvfuzz.errors import UsageError

if TYPE_CHECKING:
    from mutants.report.report import Report


@dataclass(frozen=True)
class Format:
    """A report format: `--NAME FILE` writes what `render(report)` returns in the module
    `mutants.report.NAME` (with underscores for dashes). `help` is the line in `--help`."""

    name: str
    help: str

    def render(self, report: Report) -> str:
        module = import_module(f"mutants.report.{self.name.replace('-', '_')}")
        return str(module.render(report))


FORMATS = (
    Format("json", "Write the whole result to FILE as JSON."),
    Format("html", "Write the report to FILE as one HTML page."),
    Format("mutation-report", "Write the result to FILE for mutation-testing-report viewers."),
    Format("junit", "Write the result to FILE as JUnit XML, one test case per mutant."),
    Format("markdown", "Write a summary to FILE as Markdown, below 1 MiB."),
    Format("badge", "Write the JSON of a shields.io endpoint badge to FILE."),
)


@dataclass(frozen=True)
class Outputs:
    """The file of each report that was asked for, by the name of its format. With `github`,
    annotations are printed and the summary of the GitHub Actions step is written."""

    files: Mapping[str, Path] = field(default_factory=dict)
    github: bool = False


def check_outputs(outputs: Outputs, inputs: Iterable[Path] = ()) -> None:
    """Raises UsageError before the work if a report cannot be written, if two go to one file, or
    if one would overwrite an input file."""
    from kvfuzz.case.files import check_writable
    from mutants.report.github import summary_file

    seen: set[str] = set()
    needed = set(map(os.path.realpath, inputs))
    for file in outputs.files.values():
        if os.path.realpath(file) in needed:
            raise UsageError(f"{file} is an input and would be overwritten: name another file")
        check_writable(file)
        if file.exists() and not file.is_file():
            continue  # a pipe or a device takes several reports
        where = os.path.realpath(file)
        if where in seen:
            raise UsageError(f"two reports would be written to {file}: name another file for one")
        seen.add(where)
    summary = summary_file() if outputs.github else None
    if summary is not None:
        check_writable(summary)


def write_outputs(outputs: Outputs, report: Report) -> None:
    """Writes every report that was asked for. Raises UsageError if one cannot be written."""
    from kvfuzz.case.files import write_text

    for each in FORMATS:
        if each.name in outputs.files:
            write_text(outputs.files[each.name], each.render(report))
    if outputs.github:
        _write_to_github(report)


def _write_to_github(report: Report) -> None:
    from mutants.report.github import annotation_lines, append_summary, summary_file

    for line in annotation_lines(report):
        print(line)
    summary = summary_file()
    if summary is not None:
        append_summary(report, summary)
