"""The commands `kvfuzz score` and `kvfuzz mutants`."""

from __future__ import annotations

from pathlib import Path

import click

from kvfuzz.options import (
    calibrated,
    calibration_option,
    examples_option,
    folder_option,
    json_option,
    options_of,
    prepare_torch,
    progress_bar,
    same_again,
    seed_option,
    subject_options,
    time_option,
    workers_option,
)

EXIT_CODES = {"killed": 0, "survived": 1, "inconclusive": 3}


@click.command()
@click.argument("subject", default="zoo")
@click.option("--mutant", "ids", multiple=True, metavar="ID", help="Score this mutant only.")
@click.option("--operator", "operators", multiple=True, help="Score this family only.")
@click.option(
    "--anywhere", is_flag=True, help="Score the faults that fit any subject, not those of its own.",
)  # fmt: skip
@click.option(
    "--expect", "expect_file", type=click.Path(path_type=Path), metavar="FILE",
    help="Divergences that are expected without a fault; such cases are left out.",
)  # fmt: skip
@examples_option("default 200")
@time_option
@seed_option
@workers_option
@click.option("--matrix", is_flag=True, help="Run every case on every mutant.")
@click.option(
    "--by", type=click.Choice(["schedule"]),
    help="Tell what each kind of step, law, path and cache kills, and kills alone; with --matrix.",
)  # fmt: skip
@click.option("--shrink/--no-shrink", default=True, help="Shrink the kills.", show_default=True)
@click.option(
    "--fail-under", type=click.FloatRange(0, 100), metavar="PERCENT",
    help="Exit 1 below this score, and 0 otherwise, whatever survived.",
)  # fmt: skip
@click.option(
    "--mutant-time", type=click.FloatRange(min=0, min_open=True), default=60.0, show_default=True,
    metavar="SECONDS", help="A mutant that takes longer is timed out.",
)  # fmt: skip
@subject_options
@calibration_option
@folder_option
@json_option
@click.option(
    "--html", "html_file", type=click.Path(path_type=Path), metavar="FILE",
    help="Write the report to FILE as one HTML page.",
)  # fmt: skip
def score(
    subject: str,
    ids: tuple[str, ...],
    operators: tuple[str, ...],
    anywhere: bool,
    expect_file: Path | None,
    examples: int | None,
    seconds: float | None,
    seed: int | None,
    workers: int,
    matrix: bool,
    by: str | None,
    shrink: bool,
    fail_under: float | None,
    mutant_time: float,
    device: str,
    dtype: str | None,
    attn: str | None,
    config_file: Path | None,
    calibration_file: Path | None,
    folder: Path,
    json_file: Path | None,
    html_file: Path | None,
) -> int:
    """Score the checker: inject every fault, and tell which are caught.

    Exit code 0 if all mutants are killed, 1 if some are not, 3 if there is no score.
    """
    from rich.console import Console

    from kvfuzz.expectations import read_expectations
    from kvfuzz.files import check_writable, write_json, write_text
    from kvfuzz.rounds import fresh_seed
    from mutants.report.html import page
    from mutants.report.text import render, schedule_table
    from mutants.report.witnesses import write_witnesses
    from mutants.schedules import schedule_json
    from mutants.score import score as run_score

    for file in (json_file, html_file):
        if file:
            check_writable(file)
    witness_folder = folder / "witnesses"
    check_writable(witness_folder / "witness.json")
    expected = read_expectations(expect_file) if expect_file else ()
    prepare_torch()
    options = options_of(device, dtype, attn, config_file)
    options = calibrated(options, subject, folder, calibration_file)
    seed = fresh_seed() if seed is None else seed
    console = Console()
    with progress_bar(f"scoring {subject}", None) as update:
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
            seconds_per_mutant=mutant_time,
            workers=workers,
            matrix=matrix or by is not None,
            shrink=shrink,
            options=options,
            progress=progress,
            command=same_again(seed),
            anywhere=anywhere,
            expected=expected,
        )
    written = write_witnesses(result, witness_folder)
    render(result, console)
    told = {"by_schedule": schedule_json(result)} if by else {}
    if by:
        console.print(schedule_table(result))
    if json_file:
        write_json(json_file, {**result.to_json(written), **told})
    if html_file:
        write_text(html_file, page(result, written))
        console.print(f"report: {html_file}", soft_wrap=True, highlight=False)
    if fail_under is not None and result.percent is not None:
        return 0 if result.percent >= fail_under else 1
    return EXIT_CODES[result.verdict]


@click.command()
@click.argument("mutant_id", required=False, metavar="[ID]")
@click.option("--operator", "operators", multiple=True, help="List this family only.")
@json_option
def mutants(mutant_id: str | None, operators: tuple[str, ...], json_file: Path | None) -> int:
    """List the library of faults, or show one with its source and its witness."""
    from rich.console import Console

    from kvfuzz.files import check_writable, write_json
    from mutants.registry import find, of_operators
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
