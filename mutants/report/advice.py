"""Advice on a mutant that was not killed: a case that would kill it, and how to fuzz it."""

from __future__ import annotations

import shlex
from itertools import pairwise

from kvfuzz.case.features import family
from kvfuzz.report.words import steps_in_words
from mutants.campaign.result import Result, Score
from mutants.mutant import Mutant

SETTINGS = ("--config", "--attn", "--dtype", "--device", "--calibration")
"""The options of `kvfuzz score` that describe the subject."""


def suggest_kill(result: Result, known: Mutant | None) -> str:
    """Returns what to draw, or which limit to raise, so that the mutant is killed. `known` is the
    mutant in the library, None if it is gone."""
    if result.state == "timed_out":
        return "more time: --mutant-time for one mutant, --seconds for the campaign"
    if known is None or known.witness is None:
        # A generic mutant has no witness and describes what to draw.
        return (known and known.advice) or "no killing case is known"
    case = known.witness
    rows = f"{case.batch} {'row' if case.batch == 1 else 'rows'}"
    words = [f"{steps_in_words(case)} ({family(case)})", rows]
    if case.given:
        words.append(f"given {' and '.join(case.given)}")
    words += [f"{name} {' or '.join(map(str, fit))}" for name, fit in known.needs.items()]
    law = "" if known.law == "agreement" else f", by the law {known.law}"
    return f"a case like its witness: {', '.join(words)}{law}"


def fuzz_command(score: Score, result: Result, known: Mutant | None) -> str:
    """Returns the command that fuzzes the mutant alone, with the settings of the score."""
    at = "" if known is None or known.subject == score.subject else f"@{score.subject}"
    asked = pairwise(shlex.split(score.command))
    kept = [word for option, value in asked if option in SETTINGS for word in (option, value)]
    words = ["kvfuzz", "fuzz", f"mutant:{result.id}{at}", *kept, "--seed", str(score.seed)]
    return shlex.join(words)
