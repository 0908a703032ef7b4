"""The commands `kvfuzz score`, `kvfuzz merge` and `kvfuzz mutants`."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from kvfuzz.cli.loading import loading
from kvfuzz.cli.options import (
    SubjectOptions,
    calibration_option,
    command_to_repeat,
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
from kvfuzz.errors import UsageError
from mutants.cli.options import Reporting, campaign_options, removed_option, reporting_options
from mutants.report.outputs import Outputs

if TYPE_CHECKING:
    from kvfuzz.search.shrink import Shrunk
    from mutants.campaign.gate import Gate
    from mutants.campaign.result import Result, Score
    from mutants.mutant import Mutant


@click.command()
@click.argument("subject", default="zoo")
@click.option(
    "--mutant",
    "mutants",
    multiple=True,
    metavar="ID",
    help="Score this mutant only (repeatable; with --operator, mutants must match both).",
)
@click.option(
    "--operator", "operators", multiple=True, help="Score this family of mutants only (repeatable)."
)
@click.option(
    "--anywhere", is_flag=True, help="Score the generic mutants, not those written for SUBJECT.",
)  # fmt: skip
@expected_option
@examples_option("default 250")
@seconds_option
@seed_option
@workers_option
@click.option(
    "--matrix", is_flag=True, help="Run every case on every mutant; reports show the kill matrix."
)
@click.option(
    "--shrink/--no-shrink", default=False, show_default=True,
    help="Shrink the case of each kill in full. `kvfuzz shrink` does that for one of them.",
)  # fmt: skip
@removed_option("--pairs", "benchmarks/pairs.py scores pairs of mutants")
@removed_option("--by", "benchmarks/declarations.py prints what each kind of step kills")
@campaign_options
@subject_options
@calibration_option
@folder_option
@reporting_options
def score(
    subject: str,
    expected_file: Path | None,
    subject_options: SubjectOptions,
    calibration_file: Path | None,
    folder: Path,
    reporting: Reporting,
    **settings: Any,
) -> int:
    """Inject faults into SUBJECT one by one, and score how many kvfuzz finds.

    The library has faults for zoo; any other SUBJECT gets generic ones. Exit code 0 if all mutants
    are killed, 1 if some are not, 3 if there is no score.
    """
    with loading(subject):
        from kvfuzz.case.files import check_writable
        from kvfuzz.search.known_divergences import read_expectations
        from mutants.campaign.gate import read_gate
        from mutants.campaign.journal import NAME as JOURNAL
        from mutants.campaign.score import score as run_score
        from mutants.report.outputs import check_outputs
        from mutants.report.progress import FamilyLines

    gate = read_gate(reporting.fail_under, reporting.baseline_file, subject, reporting.files)
    check_outputs(reporting.outputs)
    check_writable(folder / "witnesses" / "witness.json")
    settings["expected"] = read_expectations(expected_file) if expected_file else ()
    settings["options"] = subject_options.calibrated(subject, folder, calibration_file)
    settings["journal"] = settings["journal"] or folder / JOURNAL
    with _plain_warnings(), progress_bar(f"scoring {subject}", None) as bar:
        lines = FamilyLines(bar.say)

        def progress(result: Result | None, total: int) -> None:
            if result is not None:
                lines.add(result)
            bar(lines.done, total)

        settings |= {"announce": lines.begin, "progress": progress, "command": command_to_repeat}
        result = run_score(subject, **settings)
    return _report(result, folder, reporting.outputs, gate)


@contextmanager
def _plain_warnings() -> Iterator[None]:
    """Prints warnings as one line, without the place in the code."""
    with warnings.catch_warnings():
        warnings.showwarning = lambda message, *_, **__: click.echo(f"warning: {message}", err=True)
        yield


@click.command()
@click.argument("reports", nargs=-1, required=True, type=click.Path(path_type=Path))
@click.option(
    "--folder", type=click.Path(path_type=Path, file_okay=False), default=Path(".kvfuzz"),
    show_default=True, help="Folder for witnesses, the shrunk case of each kill.",
)  # fmt: skip
@reporting_options
def merge(reports: tuple[Path, ...], folder: Path, reporting: Reporting) -> int:
    """Merge the REPORTS (--json) of all shards of a campaign into one score.

    An incomplete set is refused, and the missing shards are named. Exit codes as of `score`.
    """
    from mutants.report.outputs import check_outputs

    check_outputs(reporting.outputs, reports)
    with loading("the mutants"):
        from mutants.campaign.gate import read_gate
        from mutants.campaign.merge import merge as merged

    result = merged(reports)
    gate = read_gate(reporting.fail_under, reporting.baseline_file, result.subject, reporting.files)
    return _report(result, folder, reporting.outputs, gate)


def _report(result: Score, folder: Path, outputs: Outputs, gate: Gate) -> int:
    """Reports `result` in the terminal and in all `outputs`; returns the exit code."""
    from rich.console import Console

    from mutants.campaign.gate import compare_with_baseline, exit_code
    from mutants.report.outputs import write_outputs
    from mutants.report.report import Report
    from mutants.report.text import render
    from mutants.report.witnesses import write_witnesses

    console = Console()
    written, unwritten = write_witnesses(result, folder / "witnesses")
    render(result, console)
    changed = compare_with_baseline(gate, result)
    write_outputs(outputs, Report(result, written, changed))
    for line in changed.lines if changed else ():
        console.print(line, soft_wrap=True, highlight=False, markup=False)
    if written:
        console.print(f"witnesses: {folder / 'witnesses'}", soft_wrap=True, highlight=False)
    if "html" in outputs.files:
        console.print(f"report: {outputs.files['html']}", soft_wrap=True, highlight=False)
    if unwritten is not None:
        raise unwritten
    return exit_code(gate, result)


def _shrunk_witness(mutant: Mutant) -> Shrunk:
    from mutants.campaign.witness import shrink_declared

    return shrink_declared(mutant)


@click.command()
@click.argument("mutant_id", required=False, metavar="[ID]")
@click.option("--operator", "operators", multiple=True, help="List this family only (repeatable).")
@click.option("--shrink", is_flag=True, help="Show the witness of ID shrunk in full as well.")
@json_option
def mutants(
    mutant_id: str | None, operators: tuple[str, ...], shrink: bool, json_file: Path | None
) -> int:
    """List the mutants, or show one with its source and its witness."""
    from kvfuzz.case.files import check_writable, write_json

    if shrink and not mutant_id:
        raise UsageError("--shrink shows the witness of one mutant: name it, as kvfuzz mutants ID")
    if json_file:
        check_writable(json_file)
    with loading("the mutants"):  # which are functions of torch
        from rich.console import Console

        from mutants.library.registry import find, of_operators
        from mutants.report.library import render_list, render_mutant

        chosen = [find(mutant_id)] if mutant_id else of_operators(operators)
    if mutant_id:
        render_mutant(chosen[0], Console(), _shrunk_witness(chosen[0]) if shrink else None)
    else:
        render_list(chosen, Console())
    if json_file:
        described = [{**mutant.to_json(), "source": mutant.source} for mutant in chosen]
        write_json(json_file, {"mutants": described})
    return 0
