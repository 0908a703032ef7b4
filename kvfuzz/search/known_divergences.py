"""Known divergences: those by design, and bugs that are not fixed yet.

They are listed in a JSON file: a list of objects, each with the `subject`, the `reason`, and the
conditions that a divergence must meet. A hunt counts such divergences and continues.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from kvfuzz.case.case import Case
from kvfuzz.case.features import FEATURES, OVERSHOOT, features_of, overshoots
from kvfuzz.case.files import read_json
from kvfuzz.case.verdict import Verdict
from kvfuzz.errors import UsageError, did_you_mean
from kvfuzz.oracle.laws import LAWS


@dataclass(frozen=True)
class Expectation:
    """A known divergence of `subject` (a name, or a pattern with `*`), for a `reason`.

    It covers divergences from `law`, in cases with these `config` values and all these `elements`
    (features of a case), whose longest sequence has at least `length` tokens.
    """

    subject: str
    reason: str
    law: str = "agreement"
    config: Mapping[str, Any] = field(default_factory=dict)
    elements: tuple[str, ...] = ()
    length: int = 1

    def is_about(self, subject: str) -> bool:
        return fnmatchcase(subject, self.subject)

    def covers(self, case: Case, verdict: Verdict) -> bool:
        """Returns whether the diverged `verdict` on `case` is this known one."""
        found = features_of(case) | ({OVERSHOOT} if overshoots(case) else set())
        longest = max(len(row) for step in case.steps() for row in step.after)
        return (
            verdict.law == self.law
            and longest >= self.length
            and all(case.config.get(name) == value for name, value in self.config.items())
            and set(self.elements) <= found
        )


def read_expectations(path: Path) -> tuple[Expectation, ...]:
    """Reads the known divergences in the file at `path`. Raises UsageError, in one line, if the
    file is not valid."""
    data = read_json(path, "--expected")
    if not isinstance(data, list):
        raise UsageError(f"--expected {path} should hold a list, got {type(data).__name__}")
    return tuple(_expectation(path, number, item) for number, item in enumerate(data, 1))


def warn_of_unmet(
    expected: Sequence[Expectation], counts: Mapping[int, int], subject: str
) -> list[str]:
    """Returns warnings about entries of `expected` that no case of a hunt on `subject` showed.
    `counts` has the number of cases that showed each, by index."""
    warnings = [
        f"expected divergence {number} ({one.reason}) did not show: does it still diverge?"
        for number, one in enumerate(expected, 1)
        if one.is_about(subject) and not counts.get(number - 1)
    ]
    if expected and not any(one.is_about(subject) for one in expected):
        warnings.append(f"no expected divergence is about {subject}")
    return warnings


_TYPES: dict[str, tuple[type, str]] = {
    "subject": (str, "a word"),
    "reason": (str, "a sentence"),
    "law": (str, "a word"),
    "config": (dict, "an object"),
    "elements": (list, "a list of words"),
    "length": (int, "an integer"),
}


def _expectation(path: Path, number: int, item: Any) -> Expectation:
    place = f"entry {number} of --expected {path}"
    if not isinstance(item, dict):
        raise UsageError(f"{place} should be an object, got {item!r}")
    for name, value in item.items():
        if name not in _TYPES:
            raise UsageError(f"{place} has no field {name!r}{did_you_mean(name, _TYPES)}")
        kind, what = _TYPES[name]
        if not isinstance(value, kind) or isinstance(value, bool):
            raise UsageError(f"{name} in {place} should be {what}, got {value!r}")
    for name in ("subject", "reason"):
        if not item.get(name):
            raise UsageError(f"{place} has no {name}")
    elements = tuple(item.get("elements", ()))
    known_words = [(word, (*FEATURES, OVERSHOOT)) for word in elements]
    for word, known in ((item.get("law", "agreement"), LAWS), *known_words):
        if word not in known:
            raise UsageError(
                f"{place} names {word!r}, which kvfuzz does not know"
                f"{did_you_mean(str(word), known)}"
            )
    return Expectation(**{**item, "elements": elements})
