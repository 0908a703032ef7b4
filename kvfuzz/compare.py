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
    """Two paths' values [batch, time, features], and per position [batch, time] their largest
    |difference|, what is allowed, and whether neither path is finite there."""

    cached: Tensor
    uncached: Tensor
    difference: Tensor
    allowed: Tensor
    undefined: Tensor

    @property
    def excess(self) -> Tensor:
        """|difference| / allowed [batch, time]; inf where only one path is finite, 0 where
        nothing can be said."""
        ratio = self.difference / self.allowed
        ratio = torch.where(self.difference == 0, torch.zeros_like(ratio), ratio)
        return torch.where(self.undefined, torch.zeros_like(ratio), ratio)

    @property
    def diverges(self) -> Tensor:
        """Where the paths differ by more than is allowed: bool [batch, time]."""
        return self.excess > 1


def compare(cached: Tensor, uncached: Tensor, width: int | None) -> Comparison:
    """Compare `cached` with `uncached`, both [batch, time, features].

    Equal infinities are equal (a model may mask vocabulary entries). An entry that is finite in
    one path only differs by inf. A position with an entry that is NaN in both is undefined.
    """
    a, b = cached.double(), uncached.double()
    entries = (a - b).abs()
    entries = torch.where(a == b, torch.zeros_like(entries), entries)
    both_nan = a.isnan() & b.isnan()
    entries = torch.where(entries.isnan() & ~both_nan, torch.full_like(entries, torch.inf), entries)
    entries = torch.where(both_nan, torch.zeros_like(entries), entries)
    difference = entries.amax(-1)
    bound = allowed(uncached, width)
    undefined = both_nan.any(-1) & (difference <= bound)
    return Comparison(cached, uncached, difference, bound, undefined)


def judge(comparison: Comparison, case: Case, prefixwise: bool = False) -> Verdict:
    """The verdict on a case whose cached and uncached logits were compared."""
    rows = int((~comparison.undefined).sum())
    dtype = str(comparison.uncached.dtype).removeprefix("torch.")
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
    cached = comparison.cached[row, position].double()
    uncached = comparison.uncached[row, position].double()
    token = int((cached - uncached).abs().nan_to_num(nan=torch.inf).argmax())
    step = next(step for step in case.steps() if step.start <= position < step.stop)
    return Difference(
        step=step.index,
        kind=step.kind,
        row=row,
        position=position,
        token=token,
        cached=float(cached[token]),
        uncached=float(uncached[token]),
        difference=float(comparison.difference[row, position]),
        allowed=float(comparison.allowed[row, position]),
    )


def _nested(values: Tensor) -> tuple[tuple[float, ...], ...]:
    return tuple(tuple(row) for row in values.tolist())
