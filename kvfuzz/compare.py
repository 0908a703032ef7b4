"""Compare the logits of the two paths at every position of every row, and judge."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from kvfuzz.case import Case
from kvfuzz.tolerance import allowed
from kvfuzz.verdict import Difference, Verdict


@dataclass(frozen=True, slots=True)
class Comparison:
    """Two paths' values [batch, time, features], and per position [batch, time]: the feature
    `worst` whose difference is the largest multiple of what it is allowed, that `difference`, what
    is `allowed` to it as a result of `dtype`, and whether the position is `undefined`, NaN in both
    paths."""

    cached: Tensor
    uncached: Tensor
    worst: Tensor
    difference: Tensor
    allowed: Tensor
    undefined: Tensor
    dtype: torch.dtype

    @property
    def excess(self) -> Tensor:
        """|difference| / allowed [batch, time]; inf where only one path is finite."""
        return _ratio(self.difference, self.allowed)

    @property
    def diverges(self) -> Tensor:
        """Where the paths differ by more than is allowed: bool [batch, time]."""
        return self.excess > 1


def compare(
    cached: Tensor, uncached: Tensor, width: int | None, dtype: torch.dtype | None = None
) -> Comparison:
    """Compare `cached` with `uncached`, both [batch, time, features], as results of computing in
    `dtype` (default: that of `uncached`) with a residual stream of `width`.

    Equal infinities are equal (a model may mask vocabulary entries). An entry that is finite in
    one path only differs by inf. A position with an entry that is NaN in both is undefined.
    """
    a, b = cached.double(), uncached.double()
    both_nan = a.isnan() & b.isnan()
    entries = (a - b).abs().masked_fill((a == b) | both_nan, 0.0)
    entries = entries.masked_fill(entries.isnan(), torch.inf)
    bounds = allowed(uncached, width, dtype)
    worst = _ratio(entries, bounds).argmax(-1)  # [batch, time]
    difference, bound = (t.gather(-1, worst[..., None])[..., 0] for t in (entries, bounds))
    undefined = both_nan.any(-1) & (difference <= bound)
    return Comparison(
        cached, uncached, worst, difference, bound, undefined, dtype or uncached.dtype
    )


def _ratio(difference: Tensor, allowed: Tensor) -> Tensor:
    """difference / allowed, and 0 where there is no difference, whatever is allowed."""
    return (difference / allowed).masked_fill(difference == 0, 0.0)


def judge(comparison: Comparison, case: Case, prefixwise: bool = False) -> Verdict:
    """The verdict on a case whose cached and uncached logits were compared."""
    rows = int((~comparison.undefined).sum())
    dtype = str(comparison.dtype).removeprefix("torch.")
    diverges = comparison.diverges
    if bool(diverges.any()):
        return Verdict(
            "diverged",
            rows=rows,
            excess=float(comparison.excess.max()),
            dtype=dtype,
            first=_first(comparison, case),
            prefixwise=prefixwise,
            differences=_nested(comparison.difference),
            allowed=_nested(comparison.allowed),
        )
    if bool(comparison.undefined.any()):
        return Verdict("discarded", dtype=dtype, reason="both paths gave NaN")
    if not bool(comparison.uncached.any()):
        return Verdict("discarded", dtype=dtype, reason="all logits of both paths are zero")
    return Verdict(
        "agreed",
        rows=rows,
        excess=float(comparison.excess.max()),
        dtype=dtype,
        prefixwise=prefixwise,
    )


def _first(comparison: Comparison, case: Case) -> Difference:
    """The earliest diverging position; among rows that diverge there, the largest excess."""
    position = int(comparison.diverges.any(0).nonzero()[0])
    row = int(comparison.excess[:, position].argmax())
    token = int(comparison.worst[row, position])
    step = next(step for step in case.steps() if step.start <= position < step.stop)
    return Difference(
        step=step.index,
        kind=step.kind,
        row=row,
        position=position,
        token=token,
        cached=float(comparison.cached[row, position, token]),
        uncached=float(comparison.uncached[row, position, token]),
        difference=float(comparison.difference[row, position]),
        allowed=float(comparison.allowed[row, position]),
    )


def _nested(values: Tensor) -> tuple[tuple[float, ...], ...]:
    return tuple(tuple(row) for row in values.tolist())
