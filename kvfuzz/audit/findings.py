"""The findings of the audit, as plain data."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from typing import Any

from kvfuzz.audit.generate import Sampling
from kvfuzz.audit.sabotage import Pattern, Sabotaged


@dataclass(frozen=True, slots=True)
class AuditRow:
    """One prefix of one pattern, `tokens[:prefix]` of `pattern`, in a batch of one.

    `max_abs_diff` is the largest |uncached - cached| logit over all positions of sequential cached
    execution, `last_abs_diff` that of the final row alone, and `any_schedule_abs_diff` the largest
    over every way to cut the prefix into chunks. `cache_shape` is the shape of the K and V tensors
    of all layers, or the first shape that is not `expected_shape`. `cache_bytes` is the size of
    their storages, `expected_bytes` the size by formula.
    """

    pattern: Pattern
    prefix: int
    cache_shape: tuple[int, ...]
    expected_shape: tuple[int, ...]
    max_abs_diff: float
    last_abs_diff: float
    any_schedule_abs_diff: float
    cache_bytes: int
    expected_bytes: int

    @property
    def largest(self) -> float:
        """Returns the largest difference of this row; NaN if nothing could be compared."""
        return largest((self.max_abs_diff, self.last_abs_diff, self.any_schedule_abs_diff))

    def verdict(self, tolerance: float) -> str:
        """Returns `diverged`, `inconclusive` if nothing could be compared, or `agreed`."""
        if any(self.problems(tolerance)):
            return "diverged"
        return "inconclusive" if math.isnan(self.largest) else "agreed"

    def problems(self, tolerance: float) -> Iterator[str]:
        """Yields what is wrong with this row, a line each."""
        where = f"prefix {self.prefix} of pattern {spaced(self.pattern)}"
        if self.largest > tolerance:
            yield f"{where}: difference {self.largest:.4g} is above the boundary {tolerance:g}"
        if self.cache_shape != self.expected_shape:
            yield f"{where}: cache shape {self.cache_shape}, expected {self.expected_shape}"
        if self.cache_bytes != self.expected_bytes:
            yield f"{where}: the cache takes {self.cache_bytes} bytes, not {self.expected_bytes}"


@dataclass(frozen=True, slots=True)
class Generation:
    """The tokens generated after `prompt`, with the cache and without it; greedily if `sampling` is
    None. `error` is what the cached path raised."""

    prompt: Pattern
    sampling: Sampling | None
    cached: tuple[int, ...]
    uncached: tuple[int, ...]
    error: str | None = None

    @property
    def mode(self) -> str:
        return "greedy" if self.sampling is None else "sampled"

    @property
    def identical(self) -> bool:
        return self.error is None and self.cached == self.uncached

    @property
    def problem(self) -> str | None:
        if self.identical:
            return None
        found = self.error or f"cached {spaced(self.cached)}, uncached {spaced(self.uncached)}"
        return f"{self.mode} generation after {spaced(self.prompt)} differs: {found}"

    def to_json(self) -> dict[str, Any]:
        return {**asdict(self), "mode": self.mode, "identical": self.identical}


@dataclass(frozen=True, slots=True)
class Audit:
    """The result of an audit. `loss` and `max_loss` are in nats per token; `recipe` is how the
    checkpoint was trained, and `torch` the release that it was trained and audited with."""

    tolerance: float
    rows: tuple[AuditRow, ...]
    sabotages: tuple[Sabotaged, ...]
    generations: tuple[Generation, ...]
    loss: float
    max_loss: float
    recipe: dict[str, Any]
    torch: str

    @property
    def max_abs_diff(self) -> float:
        """The largest difference of all rows."""
        return largest(row.largest for row in self.rows)

    @property
    def problems(self) -> tuple[str, ...]:
        """Returns why the verdict is `diverged`, a line each."""
        rows = [problem for row in self.rows for problem in row.problems(self.tolerance)]
        others = [item.problem for item in self.sabotages]
        others += [item.problem for item in self.generations]
        return (*rows, *(problem for problem in others if problem))

    @property
    def verdict(self) -> str:
        """Returns `diverged` if anything is wrong; else `inconclusive` if a row could not be
        compared or a kind of check is missing; else `agreed`."""
        if self.problems:
            return "diverged"
        complete = self.rows and self.sabotages and self.generations
        agreed = all(row.verdict(self.tolerance) == "agreed" for row in self.rows)
        return "agreed" if complete and agreed else "inconclusive"

    def to_json(self) -> dict[str, Any]:
        longest = max(self.rows, key=lambda row: row.prefix)
        return {
            "verdict": self.verdict,
            "problems": list(self.problems),
            "tolerance": self.tolerance,
            "max_abs_diff": self.max_abs_diff,
            "rows": [{**asdict(row), "verdict": row.verdict(self.tolerance)} for row in self.rows],
            "interventions": [item.to_json() for item in self.sabotages],
            "cache_bytes": {
                "prefix": longest.prefix,
                "measured": longest.cache_bytes,
                "formula": longest.expected_bytes,
            },
            "generation": {
                "identical": all(item.identical for item in self.generations),
                "runs": [item.to_json() for item in self.generations],
            },
            "training": {"loss": self.loss, "max_loss": self.max_loss, "recipe": self.recipe},
            "torch": self.torch,
        }


def largest(differences: Iterable[float]) -> float:
    """Returns the largest of `differences`: inf if there is one, else NaN if there is one."""
    values = list(differences)
    known = [value for value in values if not math.isnan(value)]
    undefined = len(known) < len(values) and math.inf not in known
    return math.nan if undefined else max(known, default=math.nan)


def spaced(tokens: Iterable[int]) -> str:
    return " ".join(map(str, tokens))
