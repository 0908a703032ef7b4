"""A row of the table: two sides measured in turn, and the bound of their ratio."""

from __future__ import annotations

import importlib
import statistics
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

FAILS = ("missed", "changed", "error")
"""The states that fail a run of the benchmarks."""


class NotRun(Exception):
    """A row cannot run here; the message says why."""


@dataclass(frozen=True)
class Measurement:
    """What a row measured: a pair (ours, against) for each repeat, and the `evidence` beside it,
    such as alarms and detections. `changed` says what of the evidence is not as it must be."""

    pairs: tuple[tuple[float, float], ...]
    evidence: str = ""
    changed: str | None = None

    @property
    def ratios(self) -> list[float]:
        return sorted(ours / against for ours, against in self.pairs)


@dataclass(frozen=True)
class Row:
    """What is measured `against` what, and the `bound` of the ratio, which is the largest one or,
    with `at_least`, the least.

    `function` names what measures it, `module:function` in this package; it is called with
    `arguments` and the number of repeats, and returns a Measurement. `unit` is what both sides are
    counted in. A `slow` row runs only when it is named.
    """

    name: str
    what: str
    against: str
    bound: float
    function: str
    arguments: tuple[Any, ...] = ()
    at_least: bool = False
    unit: str = "s of CPU"
    repeats: int = 5
    slow: bool = False

    def measure(self, repeats: int | None = None) -> Outcome:
        """Measures the row; what goes wrong becomes the state of the outcome."""
        try:
            return judge(self, self._function()(*self.arguments, repeats or self.repeats))
        except NotRun as reason:
            return Outcome(self, "not run", str(reason))
        except Exception as error:
            traceback.print_exc()
            return Outcome(self, "error", f"{type(error).__name__}: {error}")

    def _function(self) -> Callable[..., Measurement]:
        module, _, name = self.function.partition(":")
        found: Callable[..., Measurement] = getattr(importlib.import_module(module), name)
        return found


@dataclass(frozen=True)
class Outcome:
    """The state of a row, for a `reason`, and the measurement if there is one.

    `met`: the median keeps the bound. `within`: the median misses it, but not every repeat does.
    `missed`: every repeat misses it. `changed`: the evidence is not as it must be, whatever the
    ratio. `not run`: it cannot run here. `error`: it raised.
    """

    row: Row
    state: str
    reason: str = ""
    found: Measurement | None = None

    def to_json(self) -> dict[str, Any]:
        row, found = self.row, self.found
        ratios = found.ratios if found else []
        return {
            "name": row.name,
            "what": row.what,
            "against": row.against,
            "bound": row.bound,
            "at_least": row.at_least,
            "unit": row.unit,
            "state": self.state,
            "reason": self.reason,
            "ratio": statistics.median(ratios) if ratios else None,
            "least": min(ratios, default=None),
            "most": max(ratios, default=None),
            "pairs": [list(pair) for pair in found.pairs] if found else [],
            "evidence": found.evidence if found else "",
        }


def judge(row: Row, found: Measurement) -> Outcome:
    """Compares what was `found` with the bound of `row`."""
    if found.changed:
        return Outcome(row, "changed", found.changed, found)
    sign = -1 if row.at_least else 1
    missing = [sign * (ratio - row.bound) for ratio in found.ratios]
    if statistics.median(missing) <= 0:
        return Outcome(row, "met", found=found)
    return Outcome(row, "missed" if min(missing) > 0 else "within", found=found)
