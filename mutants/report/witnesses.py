"""Writes the witness of each kill as a counterexample file that `kvfuzz replay` accepts."""

from __future__ import annotations

from pathlib import Path

from kvfuzz.case.files import write_json
from kvfuzz.errors import UsageError
from mutants.campaign.result import Score


def write_witnesses(score: Score, folder: Path) -> tuple[dict[str, Path], UsageError | None]:
    """Writes each witness to `folder`, under its mutant's id. Returns the paths by id, and the
    error of the first that could not be written: the score is not lost, as the reports hold them
    too."""
    written: dict[str, Path] = {}
    for result in score.results:
        if result.witness is not None:
            path = folder / f"{result.id}.json"
            try:
                write_json(path, result.witness)
            except UsageError as error:
                return written, error
            written[result.id] = path
    return written, None
