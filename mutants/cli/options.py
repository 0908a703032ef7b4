"""The options of commands that end with a score: limits, reports and gates.

Nothing here imports torch, so that `--help` answers at once.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from kvfuzz.cli.options import Finite, Shard, Written
from mutants.report.outputs import FORMATS, Outputs


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
            help="Continue the campaign in the journal: judge only the mutants that it lacks.",
        ),
        click.option(
            "--journal", type=click.Path(path_type=Path, dir_okay=False), metavar="FILE",
            help="Journal of finished mutants (default: score.sqlite in the folder).",
        ),
        click.option(
            "--shard", type=Shard(), help="Judge part K of N of the mutants; see `kvfuzz merge`."
        ),
        click.option(
            "--mutant-memory", type=click.IntRange(min=1), default=4096, show_default=True,
            metavar="MB", help="Memory limit per mutant; above it, the mutant has crashed.",
        ),
        click.option(
            "--mutant-time", type=Finite(min=0, min_open=True), default=60.0,
            show_default=True, metavar="SECONDS", help="Time limit per mutant.",
        ),
        click.option(
            "--mutant-calls", type=click.IntRange(min=1), default=10_000, show_default=True,
            metavar="N", help="Limit of forward calls per mutant, without a kill.",
        ),
    ):  # fmt: skip
        with_limits = option(with_limits)
    return with_limits


def report_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Adds an option for the file of each report format, and --github; `command` gets them as one
    argument, `outputs`."""

    @functools.wraps(command)
    def with_outputs(*args: Any, github: bool, **given: Any) -> Any:
        named = {each.name: given.pop(_parameter(each.name)) for each in FORMATS}
        files = {name: file for name, file in named.items() if file is not None}
        return command(*args, outputs=Outputs(files, github), **given)

    wrapped: Callable[..., Any] = click.option(
        "--github", is_flag=True,
        help="Print annotations for GitHub Actions, and write the summary of the step.",
    )(with_outputs)  # fmt: skip
    for each in reversed(FORMATS):
        wrapped = click.option(
            f"--{each.name}", _parameter(each.name), type=Written(path_type=Path),
            metavar="FILE", help=each.help,
        )(wrapped)  # fmt: skip
    return wrapped


def _parameter(name: str) -> str:
    return f"{name.replace('-', '_')}_file"


def gate_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Adds the options that decide between the exit codes 0 and 1: --fail-under and --baseline."""
    for option in (
        click.option(
            "--baseline", "baseline_file", type=click.Path(path_type=Path), metavar="FILE",
            help="Exit 1 only for mutants that survive now and were killed, or absent, in FILE "
            "(a report of --json).",
        ),
        click.option(
            "--fail-under", type=Finite(0, 100), metavar="PERCENT",
            help="Exit 1 only if the score is below PERCENT.",
        ),
    ):  # fmt: skip
        command = option(command)
    return command
