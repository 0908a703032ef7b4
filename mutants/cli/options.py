"""The options of commands that end with a score: limits, reports and gates.

Nothing here imports torch, so that `--help` answers at once.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click

from kvfuzz.cli.options import Finite, Shard, Written
from kvfuzz.errors import UsageError
from mutants.report.outputs import FORMATS, Format, Outputs


def removed_option(name: str, hint: str) -> Callable[[Any], Any]:
    """Returns a hidden option that is refused: an old script learns from `hint` what to do."""

    def refuse(context: click.Context, _option: click.Parameter, value: object) -> None:
        if value is not None:
            raise UsageError(f"kvfuzz {context.info_name} has no {name} any more: {hint}")

    return click.option(name, hidden=True, expose_value=False, callback=refuse)


def campaign_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Adds --mutant-calls, --mutant-time and --mutant-memory, which `command` gets as `limits`, and
    --shard, --journal and --resume."""

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


@dataclass(frozen=True)
class Reporting:
    """What happens with a score: its reports, and the gates that decide the exit code."""

    outputs: Outputs
    fail_under: float | None
    baseline_file: Path | None

    @property
    def files(self) -> tuple[Path, ...]:
        """The files that reports are written to."""
        return tuple(self.outputs.files.values())


def reporting_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Adds the gates --fail-under and --baseline, an option for the file of each report format, and
    --github; `command` gets them as one argument, `reporting`."""

    @functools.wraps(command)
    def with_reporting(
        *args: Any,
        github: bool,
        fail_under: float | None,
        baseline_file: Path | None,
        **given: Any,
    ) -> Any:
        named = {each.name: given.pop(_parameter(each.name)) for each in FORMATS}
        outputs = Outputs({name: file for name, file in named.items() if file is not None}, github)
        return command(*args, reporting=Reporting(outputs, fail_under, baseline_file), **given)

    options: tuple[Callable[[Any], Any], ...] = (
        click.option(
            "--fail-under", type=Finite(0, 100), metavar="PERCENT",
            help="Exit 1 only if the score is below PERCENT.",
        ),
        click.option(
            "--baseline", "baseline_file", type=click.Path(path_type=Path), metavar="FILE",
            help="Exit 1 only for mutants that survive now and were killed, or absent, in FILE "
            "(a report of --json).",
        ),
        *map(_file_option, FORMATS),
        click.option(
            "--github", is_flag=True,
            help="Print annotations for GitHub Actions, and write the summary of the step.",
        ),
    )  # fmt: skip
    wrapped: Callable[..., Any] = with_reporting
    for option in reversed(options):
        wrapped = option(wrapped)
    return wrapped


def _file_option(each: Format) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    return click.option(
        f"--{each.name}", _parameter(each.name), type=Written(path_type=Path),
        metavar="FILE", help=each.help,
    )  # fmt: skip


def _parameter(name: str) -> str:
    return f"{name.replace('-', '_')}_file"
