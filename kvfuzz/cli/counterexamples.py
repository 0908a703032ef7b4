"""The commands on counterexamples, `kvfuzz replay | shrink | collect | locate`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from kvfuzz.cli.exit_codes import EXIT_CODES
from kvfuzz.cli.loading import loading
from kvfuzz.cli.options import Finite, json_option

if TYPE_CHECKING:
    from kvfuzz.search.replay import Replayed


@click.command()
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
    with loading(_named(files)):
        from kvfuzz.report.text import replay_text
        from kvfuzz.search.replay import exit_code
        from kvfuzz.search.replay import replay as run_again

    replayed = []
    for path in files:
        item = run_again(path, subject=subject, device=device, announce=_announce)
        replayed.append(item)
        if item.error:
            click.echo(f"kvfuzz: {item.error}", err=True)
        else:
            click.echo(replay_text(item))
    return exit_code(replayed), replayed


@click.command()
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
    with loading(str(path)):
        from kvfuzz.report.text import shrunk_text
        from kvfuzz.search.replay import exit_code
        from kvfuzz.search.shrink import PASSES, Bound
        from kvfuzz.search.shrink_file import shrink_file

    bound = Bound(passes or (None if seconds else PASSES), seconds)
    item = shrink_file(path, subject=subject, device=device, bound=bound, announce=_announce)
    click.echo(shrunk_text(item))
    if item.shrunk is not None and item.shrunk.interrupted:
        raise click.exceptions.Abort
    return exit_code([item.replayed])


@click.command()
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


@click.command()
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
    from kvfuzz.case.files import check_writable, write_json, write_text

    for file in filter(None, (json_file, html_file)):
        check_writable(file)
    with loading(str(path)):
        from rich.console import Console

        from kvfuzz.report.html import location_page
        from kvfuzz.report.terminal import terminal_map
        from kvfuzz.report.text import location_text, replay_command
        from kvfuzz.search.replay import locate_file

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
    """Says on standard error which subject is about to be imported: that runs its code."""
    recorded = f" (recorded on {found.subject})" if name != found.subject else ""
    click.echo(f"importing subject {name}{recorded}", err=True)


def _named(files: list[Path]) -> str:
    """Names one file, or counts several."""
    return str(files[0]) if len(files) == 1 else f"{len(files)} counterexamples"
