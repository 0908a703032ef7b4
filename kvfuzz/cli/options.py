"""Shared parts of the commands: options and the progress bar.

Imports no torch, so that `--help` answers at once.
"""

from __future__ import annotations

import functools
import math
import os
import shlex
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from kvfuzz.case.dtypes import DTYPES
from kvfuzz.errors import UsageError

if TYPE_CHECKING:
    from kvfuzz.subjects.loading import Options

    WorkersType = click.ParamType[int]
    ShardType = click.ParamType[tuple[int, int]]
else:
    # At run time the class takes a parameter only in recent releases of click.
    WorkersType = ShardType = click.ParamType

F = TypeVar("F", bound=Callable[..., Any])


class Workers(WorkersType):
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
    """A finite number in a range. (click lets `nan` through: it fails no comparison.)"""

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> float:
        number = float(super().convert(value, param, ctx))
        if not math.isfinite(number):
            self.fail(f"{value!r} is not a finite number", param, ctx)
        return number


class Shard(ShardType):
    """`K/N`: shard K of N, counted from 1."""

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
    """An output file, which does not change what the command does."""


class Renamed(click.Option):
    """An option that also accepts its `former` name, which `--help` does not show."""

    def __init__(self, *declarations: Any, former: str, **settings: Any) -> None:
        super().__init__(*declarations, **settings)
        self.former = former

    def add_to_parser(self, parser: Any, ctx: click.Context) -> None:
        super().add_to_parser(parser, ctx)
        parser.add_option(self, [self.former], dest=self.name, action="store", nargs=self.nargs)


json_option = click.option(
    "--json", "json_file", type=Written(path_type=Path), metavar="FILE",
    help="Write the result to FILE as JSON.",
)  # fmt: skip
seed_option = click.option(
    "--seed", type=click.IntRange(min=0), metavar="N",
    help="Random seed: the same seed draws the same cases (default: a fresh one, printed).",
)  # fmt: skip
seconds_option = click.option(
    "--seconds", cls=Renamed, former="--time", type=Finite(min=0, min_open=True), metavar="N",
    help="Stop after N seconds.",
)  # fmt: skip
expected_option = click.option(
    "--expected", "expected_file", cls=Renamed, former="--expect",
    type=click.Path(path_type=Path), metavar="FILE",
    help="JSON list of known divergences to ignore, each with a reason.",
)  # fmt: skip
workers_option = click.option(
    "-n", "--workers", type=Workers(), default=1, show_default=True,
    help="Number of worker processes.",
)  # fmt: skip
folder_option = click.option(
    "--folder", type=click.Path(path_type=Path, file_okay=False), default=Path(".kvfuzz"),
    show_default=True, help="Folder for counterexamples and calibrations.",
)  # fmt: skip
calibration_option = click.option(
    "--calibration", "calibration_file", type=click.Path(path_type=Path), metavar="FILE",
    help="Use this file of `kvfuzz calibrate` (default: the one in the folder, if it fits).",
)  # fmt: skip


def examples_option(default: str) -> Callable[[F], F]:
    """Returns the option `--examples N`; its help shows the `default`."""
    return click.option(
        "--examples", type=click.IntRange(min=1), metavar="N",
        help=f"Number of cases to draw ({default}).",
    )  # fmt: skip


def as_one_argument(
    name: str, into: type[Any], *options: Callable[[Any], Any]
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Returns a decorator that adds `options` to a command, and passes their values to it as one
    argument called `name`: an instance of the dataclass `into`, with a field for each option."""

    def decorate(command: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(command)
        def gathered(**given: Any) -> Any:
            values = {each.name: given.pop(each.name) for each in fields(into)}
            return command(**{name: into(**values)}, **given)

        for option in reversed(options):
            gathered = option(gathered)
        return gathered

    return decorate


@dataclass(frozen=True)
class SubjectOptions:
    """The options that say how the subject is built."""

    device: str
    dtype: str | None
    twin: bool
    attn: str | None
    config_file: Path | None

    def options(self) -> Options:
        """Returns them as Options, with the configuration from the file. Raises UsageError."""
        from kvfuzz.subjects.loading import Options

        config = _config(self.config_file)
        if self.attn is not None:
            config["attn"] = self.attn
        return Options(device=self.device, dtype=self.dtype, config=config, twin=self.twin)

    def calibrated(self, subject: str, folder: Path, calibration_file: Path | None) -> Options:
        """Returns the Options with the calibration of `subject`: the one in `calibration_file`, or
        the one kept in `folder`. Prints why a kept one does not fit. Raises UsageError."""
        from kvfuzz.search.calibrate import with_calibration

        options, misfit = with_calibration(self.options(), subject, folder, calibration_file)
        if misfit:
            click.echo(f"kvfuzz: {misfit}", err=True)
        return options


subject_options = as_one_argument(
    "subject_options",
    SubjectOptions,
    click.option("--device", default="cpu", show_default=True, help="Run on this device."),
    click.option(
        "--dtype", type=click.Choice(DTYPES),
        help="Run in this dtype only (default: draw from those that the subject offers).",
    ),
    click.option(
        "--twin/--no-twin", default=True,
        help="Without the float64 twin a large model needs a third of the memory; a fault smaller "
        "than the rounding of its dtype is not seen (default: with the twin).",
    ),
    click.option(
        "--attn", type=click.Choice(["eager", "sdpa"]),
        help="Attention implementation of a transformers model (default: draw both).",
    ),
    click.option(
        "--config", "config_file", type=click.Path(path_type=Path), metavar="FILE.json",
        help="JSON object with settings of the model, for transformers the fields of its config "
        'class, such as {"num_hidden_layers": 3}.',
    ),
)  # fmt: skip
"""--device --dtype --twin --attn --config, passed to the command as `subject_options`."""


NOT_AGAIN = ("seed", "folder", "workers", "journal", "resume", "github")
"""Options that do not change a result, and the seed, which is appended."""


def command_to_repeat(seed: int) -> str:
    """Returns the command line that gives the present result again under `seed`: all options that
    differ from their defaults, except output files and the number of processes."""
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
    """Returns the words on the command line that give `option` its `value`."""
    if isinstance(value, bool):
        return [option.opts[0] if value else option.secondary_opts[0]]
    if isinstance(option.type, Shard):
        value = "{}/{}".format(*value)
    values = value if isinstance(value, tuple) else (value,)
    return [word for each in values for word in (max(option.opts, key=len), str(each))]


@dataclass(frozen=True)
class Bar:
    """A progress bar: called with (done, total), it moves. `say` prints a line above it, also where
    there is no terminal and so no bar."""

    move: Callable[[int, int | None], None]
    say: Callable[[str], None]

    def __call__(self, done: int, total: int | None = None) -> None:
        self.move(done, total)


@contextmanager
def progress_bar(label: str, total: int | None) -> Iterator[Bar]:
    """Shows a progress bar on standard error, if that is a terminal."""
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

        def move(done: int, total: int | None) -> None:
            progress.update(task, completed=done, total=total)

        def say(line: str) -> None:
            console.print(line, soft_wrap=True, highlight=False, markup=False)

        yield Bar(move, say)


def _config(path: Path | None) -> dict[str, Any]:
    from kvfuzz.case.files import read_json

    if path is None:
        return {}
    data = read_json(path, "--config")
    if not isinstance(data, dict):
        raise UsageError(f"--config {path} should hold a JSON object, got {type(data).__name__}")
    return data
