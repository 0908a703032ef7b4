"""Checks a subject in one line of a test."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Unpack

from kvfuzz.errors import Inconclusive
from kvfuzz.report.text import hunt_text
from kvfuzz.search.hunt import FuzzKeywords, fuzz

FOLDER = Path(".kvfuzz")


def assert_agrees(subject: Any, **settings: Unpack[FuzzKeywords]) -> None:
    """Hunts with `kvfuzz.fuzz`, and raises AssertionError with the shrunk case if `subject`
    diverges.

    Takes the keyword arguments of `kvfuzz.fuzz`; `folder`, for counterexamples, is FOLDER by
    default. Raises Inconclusive if nothing was compared.
    """
    settings.setdefault("folder", FOLDER)
    hunt = fuzz(subject, **settings)
    if hunt.verdict == "diverged":
        raise AssertionError(hunt_text(hunt))
    if hunt.verdict == "inconclusive":
        raise Inconclusive(hunt_text(hunt))
