"""The options of commands that end with a score: how the campaign runs, its reports and its gates.

Nothing here imports torch, so that `--help` answers at once.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path
from typing import Any

import click

from kvfuzz.cli.options import Finite, Shard, Written, json_option
from mutants.report.outputs import Outputs


def campaign_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """--mutant-calls --mutant-time --mutant-memory (the command's `limits`), --shard, --journal and
    --resume."""

    @functools.wraps(command)
    def with_limits(
        *args: Any, mutant_calls: int, mutant_time: float, mutant_memory: int, **kwargs: Any
    ) -> Any:
        from mutants.campaign.campaign import Limits

        return command(*args, limits=Limits(mutant_calls, mutant_time, mutant_memory), **kwargs)

    for option in (
        click.option(
            "--resume", is_flag=True,
            help="Go on with the campaign in the journal: judge only what it has not finished.",
        ),
        click.option(
            "--journal", type=click.Path(path_type=Path, dir_okay=False), metavar="FILE",
            help="Where what is finished is kept (default: score.sqlite in the folder).",
        ),
        click.option("--shard", type=Shard(), help="Judge the Kth of N parts; see `kvfuzz merge`."),
        click.option(
            "--mutant-memory", type=click.IntRange(min=1), default=4096, show_default=True,
            metavar="MB", help="A mutant that takes more memory than this has crashed.",
        ),
        click.option(
            "--mutant-time", type=Finite(min=0, min_open=True), default=60.0,
            show_default=True, metavar="SECONDS", help="A mutant that takes longer is timed out.",
        ),
        click.option(
            "--mutant-calls", type=click.IntRange(min=1), default=10_000, show_default=True,
            metavar="N", help="A mutant that is not killed in N forward calls is timed out.",
        ),
    ):  # fmt: skip
        with_limits = option(with_limits)
    return with_limits


def report_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """The options that say where reports go: --json --html --mutation-report --junit --markdown
    --badge --github. `command` gets them as one argument, `outputs`."""

    @functools.wraps(command)
    def with_outputs(*args: Any, **given: Any) -> Any:
        files = {each.name: given.pop(each.name) for each in fields(Outputs)}
        return command(*args, outputs=Outputs(**files), **given)

    wrapped: Callable[..., Any] = with_outputs
    for option in (
        click.option(
            "--github", is_flag=True,
            help="Print annotations for GitHub Actions, and write the step's summary.",
        ),
        _file("--badge", "badge_file", "Write the JSON of a shields.io endpoint badge to FILE."),
        _file("--markdown", "markdown_file", "Write a summary to FILE as Markdown, below 1 MiB."),
        _file("--junit", "junit_file", "Write the result to FILE as JUnit XML."),
        _file(
            "--mutation-report", "mutation_file",
            "Write the result to FILE for viewers of the mutation-testing-report-schema.",
        ),
        _file("--html", "html_file", "Write the report to FILE as one HTML page."),
        json_option,
    ):  # fmt: skip
        wrapped = option(wrapped)
    return wrapped


def gate_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """The options that decide between the exit codes 0 and 1: --fail-under --baseline."""
    for option in (
        click.option(
            "--baseline", "baseline_file", type=click.Path(path_type=Path), metavar="FILE",
            help="Exit 1 if a mutant is not killed that was killed, or not there, in the report "
            "FILE (--json), and 0 otherwise, whatever else survived.",
        ),
        click.option(
            "--fail-under", type=Finite(0, 100), metavar="PERCENT",
            help="Exit 1 below this score, and 0 otherwise, whatever survived.",
        ),
    ):  # fmt: skip
        command = option(command)
    return command


def _file(flag: str, name: str, told: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    return click.option(flag, name, type=Written(path_type=Path), metavar="FILE", help=told)
