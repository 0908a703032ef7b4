"""Puts cases and numbers into the words of reports."""

from __future__ import annotations

import json
import math
from itertools import groupby
from typing import Any

from kvfuzz.case.case import KEEP, Case, Step
from kvfuzz.case.schedule import entry_text


def by_step(case: Case) -> list[list[tuple[int, ...]]]:
    """Returns the tokens of each row of `case`, cut into the steps that feed them."""
    fed = [step for step in case.steps() if step.feeds]
    return [[row[step.start : step.stop] for step in fed] for row in case.tokens]


def steps_in_words(case: Case) -> str:
    """Returns the steps of `case`, equal neighbours as one: `prefill 3, 4 x decode 1`."""
    words = []
    for text, run in groupby(map(step_in_words, case.steps())):
        count = len(list(run))
        words.append(f"{f'{count} x ' if count > 1 else ''}{text}")
    return ", ".join(words)


def step_in_words(step: Step) -> str:
    """Returns what `step` does: `decode 1`, `crop 2`."""
    return f"{step.kind} {step.size}" if step.operation is None else entry_text(step.operation)


def given_text(case: Case) -> str:
    """Returns what every call of `case` is given, to follow its schedule: `, given mask`."""
    words = [*case.given, *(() if case.keep is None else (f"{KEEP} {case.keep}",))]
    return f", given {' and '.join(words)}" if words else ""


def settings(case: Case) -> str:
    """Returns the config of the model of `case` in one line."""
    return ", ".join(
        f"{name} {value if isinstance(value, str) else json.dumps(value)}"
        for name, value in case.config.items()
    )


def number(value: Any) -> str:
    """Returns a measured number, with a true minus sign."""
    if value is None:
        return "none"
    return "∞" if value == math.inf else f"{value:.6g}".replace("-", "\N{MINUS SIGN}")


def count(number: int, word: str, plural: str | None = None) -> str:
    """Returns a number of things, as `1 case` or `2 cases`."""
    return f"{number} {word if number == 1 else plural or f'{word}s'}"


def times(ratio: float) -> str:
    """Returns `2.5 x`."""
    return f"{ratio:.2g} x"
