"""What the commands share: options, progress, and how a command ends.

Nothing here imports torch, so that `--help` answers at once.
"""

from __future__ import annotations

import math
import os
import shlex
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from kvfuzz.case.case import DTYPES
from kvfuzz.case.files import read_json
from kvfuzz.cli.settings import told
from kvfuzz.errors import KvfuzzError, UsageError, one_line

if TYPE_CHECKING:
    from kvfuzz.subjects.loading import Options

F = TypeVar("F", bound=Callable[..., Any])


class Workers(click.ParamType[int]):
    """A number of processes, or `auto` for one per core."""

    name = "N|auto"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        if value == "auto":
            return max(1, os.cpu_count() or 1)
        try:
            workers = int(value)
        except (TypeError, ValueError):
            workers = 0
        if workers < 1:
            self.fail(f"{value!r} is not a positive number or auto", param, ctx)
        return workers


class Finite(click.FloatRange):
    """A number in a range, and no `nan`, which is in none and fails no comparison."""

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> float:
        number = float(super().convert(value, param, ctx))
        if not math.isfinite(number):
            self.fail(f"{value!r} is not a finite number", param, ctx)
        return number


class Shard(click.ParamType[tuple[int, int]]):
    """`K/N`: the Kth of N shards, counted from 1."""

    name = "K/N"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[int, int]:
        if isinstance(value, tuple):
            return value
        try:
            k, n = (int(word) for word in str(value).split("/"))
        except ValueError:
            k, n = 0, 0
        if not 1 <= k <= n:
            self.fail(f"{value!r} is not K/N with 1 <= K <= N", param, ctx)
        return k, n


class Written(click.Path):
    """A file that a command writes: it says nothing of what the command does."""


json_option = click.option(
    "--json", "json_file", type=Written(path_type=Path), metavar="FILE",
    help="Write the result to FILE as JSON.",
)  # fmt: skip
seed_option = click.option(
    "--seed", type=click.IntRange(min=0), metavar="N",
    help="Draw the same cases as any run with seed N (default: a fresh one, printed).",
)  # fmt: skip
time_option = click.option(
    "--time", "seconds", type=Finite(min=0, min_open=True), metavar="SECONDS",
    help="Stop after SECONDS.",
)  # fmt: skip
workers_option = click.option(
    "-n", "--workers", type=Workers(), default=1, show_default=True,
    help="Processes to work in.",
)  # fmt: skip
folder_option = click.option(
    "--folder", type=click.Path(path_type=Path, file_okay=False), default=Path(".kvfuzz"),
    show_default=True, help="Where counterexamples are kept.",
)  # fmt: skip


calibration_option = click.option(
    "--calibration", "calibration_file", type=click.Path(path_type=Path), metavar="FILE",
    help="A file of `kvfuzz calibrate` (default: the one in the folder, if it fits).",
)  # fmt: skip


def examples_option(default: str) -> Callable[[F], F]:
    """`--examples N`, where `default` says what happens without."""
    return click.option(
        "--examples", type=click.IntRange(min=1), metavar="N", help=f"Cases to draw ({default})."
    )


def subject_options(command: F) -> F:
    """The options that say how a subject is built: --device --dtype --attn --config."""
    for option in (
        click.option(
            "--config", "config_file", type=click.Path(path_type=Path), metavar="FILE.json",
            help="Settings of the subject, as a JSON object.",
        ),
        click.option(
            "--attn", type=click.Choice(["eager", "sdpa"]),
            help="Attention implementation of a transformers model (default: both are drawn).",
        ),
        click.option(
            "--dtype", type=click.Choice(DTYPES),
            help="Run in this dtype (default: what the subject offers is drawn).",
        ),
        click.option("--device", default="cpu", show_default=True, help="Run on this device."),
    ):  # fmt: skip
        command = option(command)
    return command


def options_of(
    device: str, dtype: str | None, attn: str | None, config_file: Path | None
) -> Options:
    """The Options that the subject options stand for. Raises UsageError."""
    from kvfuzz.subjects.loading import Options

    config = _config(config_file)
    if attn is not None:
        config["attn"] = attn
    return Options(device=device, dtype=dtype, config=config)


def calibrated(options: Options, subject: str, folder: Path, given: Path | None) -> Options:
    """`options` with the calibration of `subject` in force: the `given` one or the one kept in
    `folder`. What keeps that from being used is told. Raises UsageError."""
    from kvfuzz.search.calibrate import in_force

    options, unfit = in_force(subject, options, folder, given)
    if unfit:
        click.echo(f"kvfuzz: {unfit}", err=True)
    return options


NOT_AGAIN = ("seed", "folder", "workers", "journal", "resume", "github")
"""What has no part in a result, or is told apart."""


def same_again(seed: int) -> str:
    """The command that runs the present one again under `seed`: its options that differ from
    their defaults, but for where it writes and how many processes it takes."""
    context = click.get_current_context()
    line = ["kvfuzz", str(context.info_name)]
    for parameter in context.command.params:
        value = context.params.get(str(parameter.name))
        if isinstance(parameter.type, Written) or parameter.name in NOT_AGAIN:
            continue
        if isinstance(parameter, click.Argument):
            line += [value] if isinstance(value, str) else []
        elif value is not None and value != parameter.get_default(context):
            line += _as_typed(parameter, value)
    return shlex.join([*line, "--seed", str(seed)])


def _as_typed(option: click.Parameter, value: Any) -> list[str]:
    """The words that give `option` its `value`."""
    if isinstance(value, bool):
        return [option.opts[0] if value else option.secondary_opts[0]]
    if isinstance(option.type, Shard):
        value = "{}/{}".format(*value)
    values = value if isinstance(value, tuple) else (value,)
    return [word for each in values for word in (max(option.opts, key=len), str(each))]


def prepare_torch() -> None:
    """One thread: more make small models slower, and change rounding."""
    import torch

    torch.set_num_threads(1)


@contextmanager
def progress_bar(label: str, total: int | None) -> Iterator[Callable[[int, int | None], None]]:
    """A bar on standard error, shown only on a terminal; call what it yields with (done, total)."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    console = Console(stderr=True)
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
    )
    with Progress(
        *columns, console=console, transient=True, disable=not console.is_terminal
    ) as progress:
        task = progress.add_task(label, total=total)

        def update(done: int, total: int | None = None) -> None:
            progress.update(task, completed=done, total=total)

        yield update


ENDINGS = (click.exceptions.Abort, click.ClickException, KvfuzzError, OSError, UnicodeError)
"""What ends a command in one line; anything else is a bug of kvfuzz, and keeps its traceback."""


def ended(error: Exception) -> int:
    """Tell in one line why a command ended; returns its exit code."""
    message, code = one_line(error), 2
    if isinstance(error, click.exceptions.Abort):
        message, code = "interrupted", 130
    elif isinstance(error, KvfuzzError):
        message, code = str(error), error.exit_code
    elif isinstance(error, click.ClickException):
        message = told(error)
    elif isinstance(error, UnicodeEncodeError):
        message = f"cannot print in {error.encoding}: set PYTHONIOENCODING=utf-8"
    elif isinstance(error, OSError):
        _drop_output()
    click.echo(f"kvfuzz: {message}", err=True)
    return code


def _drop_output() -> None:
    """Send what standard output still holds nowhere: it could not be written, and Python would
    try again at its exit, and complain."""
    with suppress(OSError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _config(path: Path | None) -> dict[str, Any]:
    if path is None:
        return {}
    data = read_json(path, "--config")
    if not isinstance(data, dict):
        raise UsageError(f"--config {path} should hold a JSON object, got {type(data).__name__}")
    return data
