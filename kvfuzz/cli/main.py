"""The commands `kvfuzz audit | fuzz | replay | shrink | collect | locate | calibrate`, and those
that other packages add.

Exit codes: 0 agreed, 1 diverged, 2 usage error (printed in one line), 3 inconclusive.
"""

from __future__ import annotations

import os
import sys
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from kvfuzz._version import __version__
from kvfuzz.cli.group import Commands
from kvfuzz.cli.options import (
    Finite,
    Renamed,
    Shard,
    SubjectOptions,
    calibration_option,
    examples_option,
    expected_option,
    folder_option,
    json_option,
    prepare_torch,
    progress_bar,
    seconds_option,
    seed_option,
    subject_options,
    workers_option,
)
from kvfuzz.cli.settings import default_map, message_of
from kvfuzz.errors import KvfuzzError, one_line

if TYPE_CHECKING:
    from kvfuzz.search.replay import Replayed

EXIT_CODES = {"agreed": 0, "diverged": 1, "inconclusive": 3}


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
    from rich.console import Console

    from kvfuzz.audit.audit import audit as run_audit
    from kvfuzz.audit.report import render
    from kvfuzz.case.files import check_writable, write_json

    if json_file:
        check_writable(json_file)
    prepare_torch()
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
    for `kvfuzz replay`.
    """
    from kvfuzz.case.files import check_writable, write_json
    from kvfuzz.oracle.laws import COMPANIONS
    from kvfuzz.report.text import hunt_text
    from kvfuzz.search.hunt import EXAMPLES
    from kvfuzz.search.hunt import fuzz as hunt
    from kvfuzz.search.known_divergences import read_expectations

    settings["expected"] = read_expectations(expected_file) if expected_file else ()
    settings["laws"] = settings["laws"] or COMPANIONS
    for file in filter(None, (json_file, folder / "counterexample.json")):
        check_writable(file)
    prepare_torch()
    options = subject_options.calibrated(subject, folder, calibration_file)
    settings |= {"options": options, "folder": folder, "database": folder / "examples"}
    total = settings["examples"] or (None if settings["seconds"] else EXAMPLES)
    with progress_bar(f"fuzzing {subject}", total) as update:
        found = hunt(subject, progress=lambda done: update(done, total), **settings)
    click.echo(hunt_text(found))
    if json_file:
        write_json(json_file, found.to_json())
    return EXIT_CODES[found.verdict]


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
    from kvfuzz.report.text import calibration_text
    from kvfuzz.search.calibrate import calibrate as measure
    from kvfuzz.search.calibrate import default_path

    path = out or default_path(folder, subject)
    check_writable(path)
    prepare_torch()
    options = subject_options.options()
    with progress_bar(f"calibrating {subject}", None) as update:
        found = measure(subject, examples=examples, seed=seed, options=options, progress=update)
    write_json(path, found.to_json())
    click.echo(calibration_text(found, path))
    return 0


@cli.command()
@click.argument("paths", nargs=-1, required=True, type=click.Path(path_type=Path))
@click.option("--subject", help="Run the same cases on this subject.")
@click.option("--device", help="Run on this device (default: the recorded one).")
@json_option
def replay(
    paths: tuple[Path, ...], subject: str | None, device: str | None, json_file: Path | None
) -> int:
    """Run counterexamples again, from files or directories.

    Imports the code of the subjects that they name. Exit code 1 if one still diverges, 0 if all
    agree.
    """
    from kvfuzz.case.counterexample import files_in
    from kvfuzz.case.files import check_writable, write_json

    if json_file:
        check_writable(json_file)
    files = files_in(paths)
    replayed: list[Replayed] = []
    code = EXIT_CODES["inconclusive"]
    if files:
        code, replayed = _replay_files(files, subject, device)
    else:
        click.echo(f"INCONCLUSIVE: no counterexample (*.json) in {', '.join(map(str, paths))}")
    if json_file:
        words = {code: word for word, code in EXIT_CODES.items()} | {2: "error"}
        write_json(
            json_file,
            {"verdict": words[code], "replayed": [item.to_json() for item in replayed]},
        )
    return code


def _replay_files(
    files: list[Path], subject: str | None, device: str | None
) -> tuple[int, list[Replayed]]:
    """Runs the counterexamples in `files` again, and prints the outcome of each; returns the exit
    code, and what came of them."""
    from kvfuzz.report.text import replay_text
    from kvfuzz.search.replay import exit_code
    from kvfuzz.search.replay import replay as run_again

    prepare_torch()
    replayed = []
    for path in files:
        item = run_again(path, subject=subject, device=device, announce=_announce)
        replayed.append(item)
        if item.error:
            click.echo(f"kvfuzz: {item.error}", err=True)
        else:
            click.echo(replay_text(item))
    return exit_code(replayed), replayed


@cli.command()
@click.argument("path", type=click.Path(path_type=Path))
@click.option("--subject", help="Shrink the case on this subject, which the file then names.")
@click.option("--device", help="Run on this device (default: the recorded one).")
@click.option(
    "--passes", type=click.IntRange(min=1), metavar="N",
    help="Stop after N forward passes (default 1000, or no limit with --seconds).",
)  # fmt: skip
@click.option(
    "--seconds", type=Finite(min=0, min_open=True), metavar="N", help="Stop after N seconds."
)
def shrink(
    path: Path, subject: str | None, device: str | None, passes: int | None, seconds: float | None
) -> int:
    """Go on shrinking the counterexample in a file, and write it back.

    Imports the code of the subject that the file names. After Ctrl-C the file holds the smallest
    case so far. Exit code 1 if the case diverges, small or not; 0 if it agrees now.
    """
    from kvfuzz.report.text import shrunk_text
    from kvfuzz.search.replay import exit_code
    from kvfuzz.search.shrink import PASSES, Bound
    from kvfuzz.search.shrink_file import shrink_file

    prepare_torch()
    bound = Bound(passes or (None if seconds else PASSES), seconds)
    item = shrink_file(path, subject=subject, device=device, bound=bound, announce=_announce)
    click.echo(shrunk_text(item))
    if item.shrunk is not None and item.shrunk.interrupted:
        raise click.exceptions.Abort
    return exit_code([item.replayed])


@cli.command()
@click.argument("paths", nargs=-1, required=True, type=click.Path(path_type=Path))
@click.option(
    "--out", type=click.Path(path_type=Path, file_okay=False), default=Path("collected"),
    show_default=True, help="Folder to write one counterexample of each kind to.",
)  # fmt: skip
@json_option
def collect(paths: tuple[Path, ...], out: Path, json_file: Path | None) -> int:
    """Deduplicate the counterexamples of several hunts.

    Reads files, and directories recursively; runs nothing. Two counterexamples are of one kind if
    they have the same subject, law, first site, schedule, number of rows and call arguments. Exit
    code 1 if there is a counterexample, 0 if not.
    """
    from kvfuzz.case.files import check_writable, write_json
    from kvfuzz.report.collected import collected_text
    from kvfuzz.search.collect import collect as gather

    for file in filter(None, (json_file, out / "counterexample.json")):
        check_writable(file)
    collected, unread = gather(paths, out)
    for error in unread:
        click.echo(f"kvfuzz: {error}", err=True)
    click.echo(collected_text(collected) if collected else "no counterexample")
    if json_file:
        collected_json = [each.to_json() for each in collected]
        write_json(json_file, {"counterexamples": collected_json, "errors": unread})
    return 2 if unread else 1 if collected else 0


@cli.command()
@click.argument("path", type=click.Path(path_type=Path))
@click.option("--subject", help="Locate the same case on this subject.")
@click.option("--device", help="Run on this device (default: the recorded one).")
@click.option(
    "--strict", is_flag=True,
    help="Report a state that differs while the logits agree as a failure, not a warning.",
)  # fmt: skip
@click.option(
    "--html", "html_file", type=click.Path(path_type=Path), metavar="FILE",
    help="Write the report and its map of differences to FILE as one HTML page.",
)  # fmt: skip
@click.option("--map/--no-map", "drawn", default=True, help="Draw the map in the terminal.")
@json_option
def locate(
    path: Path,
    subject: str | None,
    device: str | None,
    strict: bool,
    html_file: Path | None,
    drawn: bool,
    json_file: Path | None,
) -> int:
    """Locate a counterexample: the first state that differs, its source line, its cause.

    Imports the code of the subject that the file names. Exit code 0 if located, 3 if it now agrees.
    """
    from rich.console import Console

    from kvfuzz.case.files import check_writable, write_json, write_text
    from kvfuzz.report.html import location_page
    from kvfuzz.report.terminal import terminal_map
    from kvfuzz.report.text import location_text, replay_command
    from kvfuzz.search.replay import locate_file

    for file in filter(None, (json_file, html_file)):
        check_writable(file)
    prepare_torch()
    name, case, found = locate_file(
        path, subject=subject, device=device, strict=strict, announce=_announce
    )
    click.echo(location_text(found, case, path))
    if drawn and found.cells and found.located:
        Console().print(terminal_map(found.cells, case, found.first))
    if json_file:
        write_json(json_file, found.to_json())
    if html_file:
        write_text(html_file, location_page(found, case, name, replay_command(path, name)))
        click.echo(f"report: {html_file}")
    return 0 if found.first is not None else EXIT_CODES["inconclusive"]


def _announce(found: Any, name: str) -> None:
    """Prints which subject is about to be imported: that runs its code."""
    recorded = f" (recorded on {found.subject})" if name != found.subject else ""
    click.echo(f"importing subject {name}{recorded}")


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
        message, code = "interrupted", 130
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
