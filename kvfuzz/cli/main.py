"""The command line: `kvfuzz audit | fuzz | replay | collect | locate | calibrate`, and more that
packages add.

Exit codes: 0 agreed, 1 a divergence, 2 a usage error (one line), 3 inconclusive.
"""

from __future__ import annotations

import sys
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from typing import Any

import click

from kvfuzz._version import __version__
from kvfuzz.cli.options import (
    ENDINGS,
    Shard,
    calibrated,
    calibration_option,
    ended,
    examples_option,
    folder_option,
    json_option,
    options_of,
    prepare_torch,
    progress_bar,
    seed_option,
    subject_options,
    time_option,
    workers_option,
)
from kvfuzz.cli.settings import default_map
from kvfuzz.errors import UsageError, did_you_mean, one_line

EXIT_CODES = {"agreed": 0, "diverged": 1, "inconclusive": 3}


class Commands(click.Group):
    """A group that also offers the commands of the entry point group `kvfuzz.commands`."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted({*super().list_commands(ctx), *_offered()})

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """None also for a command that does not load: it should not take the others with it."""
        try:
            return self._loaded(ctx, cmd_name)
        except UsageError:
            return None

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        for name in self.list_commands(ctx):
            try:
                self._loaded(ctx, name)
            except UsageError as error:
                click.echo(f"kvfuzz: {error}", err=True)
        super().format_commands(ctx, formatter)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        name = args[0]
        if not name.startswith("-") and self._loaded(ctx, name) is None:
            known = self.list_commands(ctx)
            hint = did_you_mean(name, known) or f": choose from {', '.join(known)}"
            raise UsageError(f"there is no command {name!r}{hint}")
        return super().resolve_command(ctx, args)

    def _loaded(self, ctx: click.Context, name: str) -> click.Command | None:
        """The command, or None if there is none. Raises UsageError if it does not load."""
        command = super().get_command(ctx, name)
        if command is not None or name not in _offered():
            return command
        entry = _offered()[name]
        try:
            loaded = entry.load()
        except (Exception, SystemExit) as error:
            raise UsageError(
                f"the command {name!r} ({entry.value}) does not load: {one_line(error)}"
            ) from error
        if not isinstance(loaded, click.Command):
            kind = type(loaded).__name__
            raise UsageError(f"the command {name!r} ({entry.value}) is no click command: a {kind}")
        return loaded


@click.group(cls=Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="kvfuzz")
@click.pass_context
def cli(ctx: click.Context) -> None:
    """Prove that a language model's KV cache is right.

    A decoder fed through its cache must give the logits that it gives without one. A SUBJECT is
    zoo, zoo:NAME, transformers:MODEL_TYPE, transformers:DIRECTORY, package.module:attribute or
    path/to/file.py:attribute.
    """
    assert isinstance(ctx.command, click.Group)
    ctx.default_map = default_map(ctx.command, Path())


@cli.command()
@json_option
def audit(json_file: Path | None) -> int:
    """Audit the registered decoder's trained checkpoint.

    Every prefix of every pattern of its corpus, two deliberate failures, the cache's memory, and
    generation with and without the cache.
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
@examples_option("default 200, or no limit with --time")
@time_option
@seed_option
@click.option("--shard", type=Shard(), help="Hunt as shard K of N, with a seed of its own.")
@workers_option
@click.option(
    "--length", type=click.IntRange(min=1), metavar="TOKENS",
    help="Longest row to draw (default 20); go past a window that is longer.",
)  # fmt: skip
@click.option(
    "--law", "laws", multiple=True, metavar="LAW",
    help="Hold cases to this companion law beside agreement (default: each in its turn).",
)  # fmt: skip
@click.option(
    "--expect", "expect_file", type=click.Path(path_type=Path), metavar="FILE",
    help="Divergences that are expected, with a reason each; they end no hunt.",
)  # fmt: skip
@click.option(
    "--locate/--no-locate", "locating", default=True,
    help="Say where what fails goes wrong: state, line and cause (default: yes).",
)  # fmt: skip
@subject_options
@calibration_option
@folder_option
@json_option
def fuzz(
    subject: str,
    examples: int | None,
    seconds: float | None,
    seed: int | None,
    shard: tuple[int, int] | None,
    workers: int,
    length: int | None,
    laws: tuple[str, ...],
    expect_file: Path | None,
    locating: bool,
    device: str,
    dtype: str | None,
    attn: str | None,
    config_file: Path | None,
    calibration_file: Path | None,
    folder: Path,
    json_file: Path | None,
) -> int:
    """Hunt for a case on which SUBJECT gives other logits with its cache than without.

    What fails is shrunk, printed and written as a counterexample that `kvfuzz replay` accepts.
    """
    from kvfuzz.case.files import check_writable, write_json
    from kvfuzz.oracle.laws import COMPANIONS
    from kvfuzz.report.text import hunt_text
    from kvfuzz.search.hunt import EXAMPLES
    from kvfuzz.search.hunt import fuzz as hunt
    from kvfuzz.search.known_divergences import read_expectations

    expected = read_expectations(expect_file) if expect_file else ()
    if json_file:
        check_writable(json_file)
    check_writable(folder / "counterexample.json")
    prepare_torch()
    options = options_of(device, dtype, attn, config_file)
    options = calibrated(options, subject, folder, calibration_file)
    total = examples or (None if seconds else EXAMPLES)
    with progress_bar(f"fuzzing {subject}", total) as update:
        found = hunt(
            subject,
            examples=examples,
            seed=seed,
            seconds=seconds,
            workers=workers,
            shard=shard,
            longest=length,
            options=options,
            folder=folder,
            database=folder / "examples",
            laws=laws or COMPANIONS,
            expected=expected,
            locating=locating,
            progress=lambda done: update(done, total),
        )
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
    "--out", "out", type=click.Path(path_type=Path), metavar="FILE",
    help="Where to write the calibration (default: where fuzz and score look in the folder).",
)  # fmt: skip
def calibrate(
    subject: str,
    examples: int | None,
    seed: int | None,
    device: str,
    dtype: str | None,
    attn: str | None,
    config_file: Path | None,
    folder: Path,
    out: Path | None,
) -> int:
    """Measure what clean cases of SUBJECT come to on this machine, and keep it.

    For a subject that is known to be right: refused if it diverges in float64. `kvfuzz fuzz` and
    `kvfuzz score` use the file, and cite it.
    """
    from kvfuzz.case.files import check_writable, write_json
    from kvfuzz.report.text import calibration_text
    from kvfuzz.search.calibrate import calibrate as measure
    from kvfuzz.search.calibrate import default_path

    path = out or default_path(folder, subject)
    check_writable(path)
    prepare_torch()
    options = options_of(device, dtype, attn, config_file)
    with progress_bar(f"calibrating {subject}", None) as update:
        found = measure(subject, examples=examples, seed=seed, options=options, progress=update)
    write_json(path, found.to_json())
    click.echo(calibration_text(found, path))
    return 0


@cli.command()
@click.argument("paths", nargs=-1, required=True, type=click.Path(path_type=Path))
@click.option("--subject", help="Run the same programs on another subject.")
@click.option("--device", help="Run on another device than the recorded one.")
@json_option
def replay(
    paths: tuple[Path, ...], subject: str | None, device: str | None, json_file: Path | None
) -> int:
    """Run counterexamples again: files, or directories of them.

    Imports the code of the subjects that they name. Exit code 1 if one still diverges, 0 if they
    now agree.
    """
    from kvfuzz.case.files import check_writable, write_json
    from kvfuzz.report.text import replay_text
    from kvfuzz.search.replay import exit_code, files_of
    from kvfuzz.search.replay import replay as run_again

    if json_file:
        check_writable(json_file)
    prepare_torch()
    replayed = []
    for path in files_of(paths):
        item = run_again(path, subject=subject, device=device, announce=_announce)
        replayed.append(item)
        if item.error:
            click.echo(f"kvfuzz: {item.error}", err=True)
        else:
            click.echo(replay_text(item))
    if not replayed:
        click.echo(f"INCONCLUSIVE: no counterexample (*.json) in {', '.join(map(str, paths))}")
    code = exit_code(replayed)
    if json_file:
        words = {code: word for word, code in EXIT_CODES.items()} | {2: "error"}
        write_json(
            json_file,
            {"verdict": words[code], "replayed": [item.to_json() for item in replayed]},
        )
    return code


@cli.command()
@click.argument("paths", nargs=-1, required=True, type=click.Path(path_type=Path))
@click.option(
    "--out", type=click.Path(path_type=Path, file_okay=False), default=Path("collected"),
    show_default=True, help="Where one counterexample of each program is written.",
)  # fmt: skip
@json_option
def collect(paths: tuple[Path, ...], out: Path, json_file: Path | None) -> int:
    """Gather the counterexamples of several hunts, one of each shrunk program.

    From files, or folders with all that is in them. Runs nothing. Exit code 1 if there is one, 0 if
    not.
    """
    from kvfuzz.case.files import check_writable, write_json
    from kvfuzz.report.text import collected_text
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
@click.option("--subject", help="Locate the same program on another subject.")
@click.option("--device", help="Run on another device than the recorded one.")
@click.option(
    "--strict", is_flag=True,
    help="A state that differs while the logits agree is a failure too, not a warning.",
)  # fmt: skip
@click.option(
    "--html", "html_file", type=click.Path(path_type=Path), metavar="FILE",
    help="Write the report with its map of differences as one page.",
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
    """Say where a counterexample goes wrong: the first state that differs, its line, its cause.

    Imports the code of the subject that it names. Exit code 0 if it is located, 3 if it now agrees.
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
    recorded = f" (recorded on {found.subject})" if name != found.subject else ""
    click.echo(f"importing subject {name}{recorded}")


def main(args: list[str] | None = None) -> int:
    """Run the command line; returns the exit code. What is refused ends in one line."""
    try:
        code = cli.main(args=args, prog_name="kvfuzz", standalone_mode=False)
    except ENDINGS as error:
        return ended(error)
    return code if isinstance(code, int) else 0


def _offered() -> dict[str, EntryPoint]:
    return {entry.name: entry for entry in entry_points(group="kvfuzz.commands")}


if __name__ == "__main__":
    sys.exit(main())
