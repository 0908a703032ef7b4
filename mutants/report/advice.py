"""What would kill a mutant that was not killed."""

from __future__ import annotations

import shlex
from itertools import pairwise

from kvfuzz.case.features import family
from kvfuzz.report.words import steps_in_words
from mutants.campaign.result import Result, Score
from mutants.mutant import Mutant

SETTINGS = ("--config", "--attn", "--dtype", "--device", "--calibration")
"""The options of a score that say what its subject is."""


def would_kill(result: Result, known: Mutant | None) -> str:
    """What to draw, or to allow, so that a mutant is killed that the library knows as `known`."""
    if result.state == "timed_out":
        return "more time: --mutant-time for each mutant, --seconds for all"
    if known is None or known.witness is None:
        # A fault that fits any subject has no case of its own, and says what to draw instead.
        return (known and known.advice) or "nothing is known that does"
    case = known.witness
    rows = f"{case.batch} {'row' if case.batch == 1 else 'rows'}"
    told = [f"{steps_in_words(case)} ({family(case)})", rows]
    if case.given:
        told.append(f"given {' and '.join(case.given)}")
    told += [f"{name} {' or '.join(map(str, fit))}" for name, fit in known.needs.items()]
    law = "" if known.law == "agreement" else f", by the law {known.law}"
    return f"a case like its witness: {', '.join(told)}{law}"


def hunt_command(score: Score, result: Result, known: Mutant | None) -> str:
    """The command that hunts the mutant by itself, with the settings of the score."""
    at = "" if known is None or known.subject == score.subject else f"@{score.subject}"
    asked = pairwise(shlex.split(score.command))
    kept = [word for option, value in asked if option in SETTINGS for word in (option, value)]
    words = ["kvfuzz", "fuzz", f"mutant:{result.id}{at}", *kept, "--seed", str(score.seed)]
    return shlex.join(words)
