"""The contract as one line of a test."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from kvfuzz.errors import Inconclusive
from kvfuzz.report.text import hunt_text
from kvfuzz.search.hunt import fuzz

FOLDER = Path(".kvfuzz")


def assert_agrees(
    subject: Any, *, folder: Path | str | None = FOLDER, **fuzz_arguments: Any
) -> None:
    """Raise AssertionError, with the shrunk case, if `subject` diverges in a hunt.

    Takes what `kvfuzz.fuzz` takes; a counterexample is written into `folder`. Raises Inconclusive
    if nothing was compared.
    """
    hunt = fuzz(subject, folder=folder, **fuzz_arguments)
    if hunt.verdict == "diverged":
        raise AssertionError(hunt_text(hunt))
    if hunt.verdict == "inconclusive":
        raise Inconclusive(hunt_text(hunt))
