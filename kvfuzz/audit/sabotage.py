"""Sabotages the cached path with a known fault, which the audit must catch and locate."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor

from kvfuzz.case.case import Case
from kvfuzz.localize.causes import advice_for
from kvfuzz.localize.location import Divergence
from kvfuzz.localize.traced_states import first_state
from kvfuzz.oracle.compare import compare
from kvfuzz.oracle.tolerance import constant
from kvfuzz.subjects.injection import Fault, Faulty
from kvfuzz.subjects.protocol import Subject
from kvfuzz.subjects.run import CachedPathRaised, run_cached, run_uncached

Pattern = tuple[int, ...]

THIRD = 2  # the position of the third token


@dataclass(frozen=True, slots=True)
class Sabotage:
    """A known fault: `fault` replaces `target`, and shows first at the site `expected`."""

    name: str
    description: str
    target: str
    fault: Fault
    expected: str


@dataclass(frozen=True, slots=True)
class Sabotaged:
    """The result of a sabotage.

    `max_abs_diff` is the largest |uncached - cached| logit, `by_prefix` the largest at each prefix
    length from 1 on; `caught` says whether it exceeds the tolerance. `first_site` is the first
    state that differs, at `position` (from 0), and `advice` says what to inspect; they are None if
    no state differs.
    """

    name: str
    description: str
    caught: bool
    max_abs_diff: float
    by_prefix: tuple[float, ...]
    expected_site: str
    first_site: str | None
    first_site_prose: str | None
    position: int | None
    source: str | None
    advice: str | None

    @property
    def problem(self) -> str | None:
        """Returns why the sabotage counts as a failure of the audit, in a line; None if it was
        caught at the expected site."""
        if not self.caught:
            return f"{self.name} was not caught: it changes logits by {self.max_abs_diff:.3g}"
        if self.first_site != self.expected_site:
            return f"{self.name} begins at {self.expected_site}, but {self.first_site} was named"
        return None

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def sabotage(
    subject: Subject, known: Sabotage, patterns: Sequence[Pattern], tolerance: float
) -> Sabotaged:
    """Runs `subject` with the fault of `known` in its cached path, one token per step over every
    prefix of every pattern. Returns whether it was caught, and where it was located."""
    faulty = Faulty(subject, [known.target], known.fault)
    lengths = range(1, len(patterns[0]) + 1)
    by_prefix = tuple(
        max(float(position_differences(faulty, p[:length]).max()) for p in patterns)
        for length in lengths
    )
    worst = max(patterns, key=lambda p: float(position_differences(faulty, p).max()))
    found = first_state(faulty, one_by_one(worst))
    return Sabotaged(
        name=known.name,
        description=known.description,
        caught=max(by_prefix) > tolerance,
        max_abs_diff=max(by_prefix),
        by_prefix=by_prefix,
        expected_site=known.expected,
        first_site=str(found.site) if found else None,
        first_site_prose=found.site.prose if found else None,
        position=found.position if found else None,
        source=str(found.source) if found else None,
        advice=advice(found) if found else None,
    )


def advice(divergence: Divergence) -> str:
    """Returns what to inspect first about `divergence`."""
    return f"inspect {advice_for(divergence.site, divergence.row, divergence.position)}"


def one_by_one(tokens: Pattern) -> Case:
    """Returns a case of one row that feeds one token per step."""
    return Case((tokens,), (1,) * len(tokens))


def position_differences(
    subject: Subject, tokens: Pattern, schedule: tuple[int, ...] | None = None
) -> Tensor:
    """Returns the largest |uncached - cached| logit at each position [time], of an uncached run
    over `tokens` and a cached run by `schedule` (default: one token per step).

    It is inf where only one path is finite, and everywhere if the cached path raises; NaN where
    nothing can be compared, because both paths give NaN or only zeros.
    """
    case = Case((tokens,), schedule) if schedule else one_by_one(tokens)
    uncached = run_uncached(subject, case.tokens)
    try:
        cached = run_cached(subject, case)
    except CachedPathRaised:
        return torch.full((len(tokens),), math.inf, dtype=torch.float64)
    tolerance = constant(uncached, getattr(subject, "width", None), uncached.dtype)
    compared = compare(cached, uncached, tolerance)
    nothing = compared.undefined | ~uncached.any(-1)  # [batch, time]
    return compared.difference.masked_fill(nothing & (compared.difference == 0), math.nan)[0]


def _third_token_one_late(real: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """Gives the third token the position of the fourth."""

    def position_index(*args: Any) -> Tensor:
        index = real(*args)
        return torch.where(index == THIRD, index + 1, index)

    return position_index


def _first_layer_for_all(real: Callable[..., Any]) -> Callable[..., Any]:
    """Makes every layer read the cache of the first."""
    return lambda cache, _layer: real(cache, 0)


SABOTAGES = (
    Sabotage(
        "wrong-position",
        "the third token takes position 3 in place of 2",
        "kvfuzz.subjects.zoo.cached:position_index",
        _third_token_one_late,
        "position",
    ),
    Sabotage(
        "wrong-layer",
        "layer 2 reads the cache of layer 1",
        "kvfuzz.subjects.zoo.cached:fetch",
        _first_layer_for_all,
        "1.cache",
    ),
)
