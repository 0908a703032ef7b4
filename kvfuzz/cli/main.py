"""The commands `kvfuzz audit | fuzz | replay | shrink | collect | locate | calibrate`, and those
that other packages add.

Exit codes: 0 agreed, 1 diverged, 2 usage error (printed in one line), 3 inconclusive.
"""

from __future__ import annotations

import os
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

import click

from kvfuzz._version import __version__
from kvfuzz.cli.counterexamples import collect, locate, replay, shrink
from kvfuzz.cli.exit_codes import EXIT_CODES
from kvfuzz.cli.group import Commands
from kvfuzz.cli.loading import loading
from kvfuzz.cli.options import (
    Renamed,
    Shard,
    SubjectOptions,
    calibration_option,
    examples_option,
    expected_option,
    folder_option,
    json_option,
    progress_bar,
    seconds_option,
    seed_option,
    subject_options,
    workers_option,
)
from kvfuzz.cli.settings import default_map, message_of
from kvfuzz.errors import KvfuzzError, one_line


@click.group(cls=Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="kvfuzz")
@click.pass_context
def cli(ctx: click.Context) -> None:
    """Check that a language model gives the same logits with its KV cache as without it.

    SUBJECT names the model: path/to/file.py:attribute, package.module:attribute,
    transformers:MODEL_TYPE, transformers:DIRECTORY, mlx:TYPE, transformer_lens:POSITIONS, zoo or
    zoo:NAME (the built-in decoder), or mutant:ID (the built-in decoder with a fault).
    """
    assert isinstance(ctx.command, click.Group)
    ctx.default_map = default_map(ctx.command, Path())


@cli.command()
@json_option
def audit(json_file: Path | None) -> int:
    """Audit the trained checkpoint of the built-in decoder.

    Compares cached and uncached logits on every prefix of every pattern of its corpus, sabotages
    the cache in two ways that must be caught, measures the cache's memory, and compares generation.
    """
    from kvfuzz.case.files import check_writable, write_json

    if json_file:
        check_writable(json_file)
    with loading("the checkpoint"):
        from rich.console import Console

        from kvfuzz.audit.audit import audit as run_audit
        from kvfuzz.audit.report import render

    result = run_audit()
    render(result, Console())
    if json_file:
        write_json(json_file, result.to_json())
    return EXIT_CODES[result.verdict]


@cli.command()
@click.argument("subject")
@examples_option("default 200, or no limit with --seconds")
@seconds_option
@seed_option
@click.option("--shard", type=Shard(), help="Run shard K of N, with a seed derived from --seed.")
@workers_option
@click.option(
    "--max-length", cls=Renamed, former="--length", type=click.IntRange(min=1), metavar="TOKENS",
    help="Maximum tokens per row (default 20). To test a sliding window, exceed it.",
)  # fmt: skip
@click.option(
    "--law", "laws", multiple=True, metavar="LAW",
    help="Companion law to check besides agreement (repeatable; default: all, in rotation).",
)  # fmt: skip
@expected_option
@click.option(
    "--locate/--no-locate", default=True,
    help="Locate a failure: state, source line and cause (default: yes).",
)  # fmt: skip
@click.option(
    "--shrink-passes", type=click.IntRange(min=0), default=1000, show_default=True, metavar="N",
    help="Shrink a failure in at most N forward passes; `kvfuzz shrink` goes on.",
)  # fmt: skip
@click.option(
    "--keep-going/--no-keep-going", default=False,
    help="Go on after a divergence, and find one counterexample of each cause (default: no).",
)  # fmt: skip
@subject_options
@calibration_option
@folder_option
@json_option
def fuzz(
    subject: str,
    subject_options: SubjectOptions,
    calibration_file: Path | None,
    expected_file: Path | None,
    folder: Path,
    json_file: Path | None,
    **settings: Any,
) -> int:
    """Search for a case on which SUBJECT gives different logits with its cache than without.

    Shrinks a failing case, locates it, prints it, and writes it to the folder as a counterexample
    for `kvfuzz replay`. With --keep-going it does so for each cause that it can distinguish.
    """
    from kvfuzz.case.files import check_writable, write_json

    for file in filter(None, (json_file, folder / "counterexample.json")):
        check_writable(file)
    with loading(subject):
        from kvfuzz.report.text import found_text, hunt_text
        from kvfuzz.search import hunt
        from kvfuzz.subjects.loading import load

        settings |= _how_to_judge(settings["laws"], expected_file)
        options = subject_options.calibrated(subject, folder, calibration_file)
        # Worker processes load it again, by its name.
        factory = load(subject, options) if settings["workers"] == 1 else subject
    settings |= {"options": options, "folder": folder, "database": folder / "examples"}
    total = settings["examples"] or (None if settings["seconds"] else hunt.EXAMPLES)
    with progress_bar(f"fuzzing {subject}", total) as update:
        found = hunt.fuzz(
            factory,
            progress=lambda done: update(done, total),
            announce=lambda first: click.echo(found_text(first), err=True),
            **settings,
        )
    click.echo(hunt_text(found))
    if json_file:
        write_json(json_file, found.to_json())
    return EXIT_CODES[found.verdict]


def _how_to_judge(laws: tuple[str, ...], expected_file: Path | None) -> dict[str, Any]:
    """Returns the settings of a hunt that say by which laws, and which divergences are known."""
    from kvfuzz.oracle.laws import COMPANIONS
    from kvfuzz.search.known_divergences import read_expectations

    expected = read_expectations(expected_file) if expected_file else ()
    return {"laws": laws or COMPANIONS, "expected": expected}


@cli.command()
@click.argument("subject")
@examples_option("default 100")
@seed_option
@subject_options
@folder_option
@click.option(
    "--out", type=click.Path(path_type=Path), metavar="FILE",
    help="Write the calibration to FILE (default: in the folder, where fuzz and score find it).",
)  # fmt: skip
def calibrate(
    subject: str,
    examples: int | None,
    seed: int | None,
    subject_options: SubjectOptions,
    folder: Path,
    out: Path | None,
) -> int:
    """Measure the rounding noise of a correct model on this machine; fuzz and score then use it.

    Only for a SUBJECT that is known to be correct: refuses one that diverges in float64.
    """
    from kvfuzz.case.files import check_writable, write_json

    with loading(subject):
        from kvfuzz.report.text import calibration_text
        from kvfuzz.search.calibrate import calibrate as measure
        from kvfuzz.search.calibrate import default_path

        options = subject_options.options()
    path = out or default_path(folder, subject)
    check_writable(path)
    with progress_bar(f"calibrating {subject}", None) as update:
        found = measure(subject, examples=examples, seed=seed, options=options, progress=update)
    write_json(path, found.to_json())
    click.echo(calibration_text(found, path))
    return 0


for command in (replay, shrink, collect, locate):
    cli.add_command(command)


def main(args: list[str] | None = None) -> int:
    """Runs the command line and returns the exit code. An error that is not a bug in kvfuzz is
    printed in one line."""
    if not (sys.argv[1:] if args is None else args):
        # As ruff, uv and click do: the help on standard error, with the exit code of bad usage.
        context = click.Context(cli, info_name="kvfuzz", **cli.context_settings)
        click.echo(cli.get_help(context), err=True)
        return 2
    try:
        code = cli.main(args=args, prog_name="kvfuzz", standalone_mode=False)
    except ENDINGS as error:
        return report_error(error)
    return code if isinstance(code, int) else 0


ENDINGS = (click.exceptions.Abort, click.ClickException, KvfuzzError, OSError, UnicodeError)
"""Errors that end a command in one line; any other is a bug in kvfuzz and keeps its traceback."""


def report_error(error: Exception) -> int:
    """Prints in one line why a command failed; returns its exit code."""
    message, code = one_line(error), 2
    if isinstance(error, click.exceptions.Abort):
        # click wraps a KeyboardInterrupt, whose text may say what was kept.
        message, code = str(error.__cause__ or "") or "interrupted", 130
    elif isinstance(error, KvfuzzError):
        message, code = str(error), error.exit_code
    elif isinstance(error, click.ClickException):
        message = message_of(error)
    elif isinstance(error, UnicodeEncodeError):
        message = f"cannot print in {error.encoding}: set PYTHONIOENCODING=utf-8"
    elif isinstance(error, OSError):
        _drop_output()
    click.echo(f"kvfuzz: {message}", err=True)
    return code


def _drop_output() -> None:
    """Discards what standard output still buffers: it could not be written, and Python would try
    again at exit and print a traceback."""
    with suppress(OSError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


if __name__ == "__main__":
    sys.exit(main())
