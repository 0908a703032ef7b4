"""The commands `kvfuzz score`, `kvfuzz merge` and `kvfuzz mutants`."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import click

from kvfuzz.cli.options import (
    SubjectOptions,
    calibration_option,
    command_to_repeat,
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
from mutants.cli.options import campaign_options, gate_options, report_options
from mutants.report.outputs import Outputs

if TYPE_CHECKING:
    from mutants.campaign.campaign import Limits
    from mutants.campaign.gate import Gate
    from mutants.campaign.result import Score


@click.command()
@click.argument("subject", default="zoo")
@click.option("--mutant", "ids", multiple=True, metavar="ID", help="Score this mutant only.")
@click.option("--operator", "operators", multiple=True, help="Score this family only.")
@click.option(
    "--anywhere", is_flag=True, help="Score the faults that fit any subject, not those of its own.",
)  # fmt: skip
@expected_option
@examples_option("default 250")
@seconds_option
@seed_option
@workers_option
@click.option("--matrix", is_flag=True, help="Run every case on every mutant.")
@click.option("--shrink/--no-shrink", default=True, help="Shrink the kills.", show_default=True)
@campaign_options
@subject_options
@calibration_option
@folder_option
@gate_options
@report_options
def score(
    subject: str,
    ids: tuple[str, ...],
    operators: tuple[str, ...],
    anywhere: bool,
    expected_file: Path | None,
    examples: int | None,
    seconds: float | None,
    seed: int | None,
    workers: int,
    matrix: bool,
    shrink: bool,
    limits: Limits,
    shard: tuple[int, int] | None,
    journal: Path | None,
    resume: bool,
    subject_options: SubjectOptions,
    calibration_file: Path | None,
    folder: Path,
    fail_under: float | None,
    baseline_file: Path | None,
    outputs: Outputs,
) -> int:
    """Score the checker: inject every fault, and tell which are caught.

    Exit code 0 if all mutants are killed, 1 if some are not, 3 if there is no score.
    """
    from kvfuzz.case.files import check_writable
    from kvfuzz.search.known_divergences import read_expectations
    from mutants.campaign.gate import read_gate
    from mutants.campaign.journal import NAME as JOURNAL
    from mutants.campaign.score import score as run_score
    from mutants.report.outputs import check_outputs

    gate = read_gate(fail_under, baseline_file, subject, outputs.files.values())
    check_outputs(outputs)
    check_writable(folder / "witnesses" / "witness.json")
    expected = read_expectations(expected_file) if expected_file else ()
    prepare_torch()
    options = subject_options.calibrated(subject, folder, calibration_file)
    journal = journal or folder / JOURNAL
    with _plain_warnings(), progress_bar(f"scoring {subject}", None) as update:
        done = 0

        def progress(result: object, total: int) -> None:
            nonlocal done
            done += result is not None
            update(done, total)

        result = run_score(
            subject,
            ids=ids,
            operators=operators,
            examples=examples,
            seed=seed,
            seconds=seconds,
            limits=limits,
            shard=shard,
            journal=journal,
            resume=resume,
            workers=workers,
            matrix=matrix,
            shrink=shrink,
            options=options,
            progress=progress,
            command=command_to_repeat,
            anywhere=anywhere,
            expected=expected,
        )
    return _told(result, folder, outputs, gate)


@contextmanager
def _plain_warnings() -> Iterator[None]:
    """Inside, a warning is a line, without the place in the code that gave it."""
    with warnings.catch_warnings():
        warnings.showwarning = lambda message, *_, **__: click.echo(f"warning: {message}", err=True)
        yield


@click.command()
@click.argument("reports", nargs=-1, required=True, type=click.Path(path_type=Path))
@folder_option
@gate_options
@report_options
def merge(
    reports: tuple[Path, ...],
    folder: Path,
    fail_under: float | None,
    baseline_file: Path | None,
    outputs: Outputs,
) -> int:
    """Put the REPORTS (--json) of all shards of a campaign together into the one of the whole.

    A set that is not complete is refused, and what is missing is named. Exit codes as of `score`.
    """
    from mutants.campaign.gate import read_gate
    from mutants.campaign.merge import merge as merged
    from mutants.report.outputs import check_outputs

    check_outputs(outputs, reports)
    result = merged(reports)
    gate = read_gate(fail_under, baseline_file, result.subject, outputs.files.values())
    return _told(result, folder, outputs, gate)


def _told(result: Score, folder: Path, outputs: Outputs, gate: Gate) -> int:
    """Tell `result` in the terminal and in all `outputs`; returns the exit code."""
    from rich.console import Console

    from mutants.campaign.gate import exit_code, since
    from mutants.report.outputs import write_outputs
    from mutants.report.report import Report
    from mutants.report.text import render
    from mutants.report.witnesses import write_witnesses

    console = Console()
    written, unwritten = write_witnesses(result, folder / "witnesses")
    render(result, console)
    changed = since(gate, result)
    write_outputs(outputs, Report(result, written, changed))
    for line in changed.lines if changed else ():
        console.print(line, soft_wrap=True, highlight=False, markup=False)
    if "html" in outputs.files:
        console.print(f"report: {outputs.files['html']}", soft_wrap=True, highlight=False)
    if unwritten is not None:
        raise unwritten
    return exit_code(gate, result)


@click.command()
@click.argument("mutant_id", required=False, metavar="[ID]")
@click.option("--operator", "operators", multiple=True, help="List this family only.")
@json_option
def mutants(mutant_id: str | None, operators: tuple[str, ...], json_file: Path | None) -> int:
    """List the library of faults, or show one with its source and its witness."""
    from rich.console import Console

    from kvfuzz.case.files import check_writable, write_json
    from mutants.library.registry import find, of_operators
    from mutants.report.library import render_list, render_mutant

    if json_file:
        check_writable(json_file)
    chosen = [find(mutant_id)] if mutant_id else of_operators(operators)
    if mutant_id:
        render_mutant(chosen[0], Console())
    else:
        render_list(chosen, Console())
    if json_file:
        described = [{**mutant.to_json(), "source": mutant.source} for mutant in chosen]
        write_json(json_file, {"mutants": described})
    return 0
