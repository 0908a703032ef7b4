"""Measures a score: its first kills against a bare cached run for each, and the whole command."""

from __future__ import annotations

import json
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory

import torch

from benchmarks.row import Measurement
from benchmarks.timing import KVFUZZ, command_seconds, import_torch_seconds, interleave
from kvfuzz.subjects.loading import Options
from kvfuzz.subjects.run import Refused, run_cached
from mutants.campaign.cases import prepare_cases
from mutants.campaign.run import check_unchanged, run_mutant
from mutants.library.registry import select

STATES = {"killed": 268, "equivalent": 9}
"""What the library comes to under seed 0."""


def first_kills(seed: int, repeats: int) -> Measurement:
    """The library until each first kill, with the clean decoder judged again after each, against
    one bare cached run of the case that kills it. Start-up is left out: cases are drawn, and their
    uncached logits known.

    Equivalent mutants run every case and have no kill to compare with; they are left out.
    """
    torch.set_num_threads(1)
    prepared = prepare_cases("zoo", Options(), None, seed)
    scored = [mutant for mutant in select("zoo")[0] if not mutant.equivalent]
    found = [(mutant, run_mutant(prepared, mutant)) for mutant in scored]
    killed = [(mutant, result) for mutant, result in found if result.killed_by is not None]
    kills = [prepared.reference(result.killed_by or 0, mutant) for mutant, result in killed]

    def ours() -> None:
        for mutant in scored:
            check_unchanged(prepared, mutant, run_mutant(prepared, mutant))

    def bare() -> None:
        for known in kills:
            with suppress(Refused):
                run_cached(known.subject, known.case)

    pairs = interleave(ours, bare, repeats)
    met = sum(result.ran for _, result in found)
    evidence = f"{len(killed)} of {len(scored)} killed under seed {seed}, {met} cases run"
    lost = sorted(mutant.id for mutant, result in found if result.state != "killed")
    return Measurement(pairs, evidence, f"not killed: {', '.join(lost)}" if lost else None)


def score_command(repeats: int) -> Measurement:
    """`kvfuzz score zoo --seed 0` with one worker process, which is counted too."""
    seen: list[dict[str, int]] = []

    def ours() -> float:
        with TemporaryDirectory() as folder:
            file = Path(folder) / "score.json"
            words = (*KVFUZZ, "score", "zoo", "--seed", "0", "--json", str(file))
            seconds, _ = command_seconds(words, Path(folder))
            counts = json.loads(file.read_text())["counts"]
            seen.append({state: number for state, number in counts.items() if number})
        return seconds

    pairs = interleave(ours, import_torch_seconds, repeats)
    evidence = ", ".join(f"{number} {state}" for state, number in seen[0].items())
    wrong = [counts for counts in seen if counts != STATES]
    return Measurement(pairs, evidence, f"other states: {wrong[0]}" if wrong else None)
