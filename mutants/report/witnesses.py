"""Write the witness of each kill, as a counterexample that `kvfuzz replay` accepts."""

from __future__ import annotations

from pathlib import Path

from kvfuzz.files import write_json
from mutants.result import Score


def write_witnesses(score: Score, folder: Path) -> dict[str, Path]:
    """Write each witness of `score` to `folder`, under its mutant's id; returns the paths by id.

    Raises UsageError if the folder cannot be written.
    """
    written = {}
    for result in score.results:
        if result.witness is not None:
            written[result.id] = folder / f"{result.id}.json"
            write_json(written[result.id], result.witness)
    return written
