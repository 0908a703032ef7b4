"""Compares the logits of the two paths at every position of every row, and judges."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from kvfuzz.case.case import Case
from kvfuzz.case.layout import layout
from kvfuzz.case.verdict import Difference, Impact, Verdict
from kvfuzz.oracle.tolerance import Tolerance
from kvfuzz.subjects.dtypes import dtype_name


@dataclass(frozen=True, slots=True)
class Comparison:
    """The values of both paths [batch, time, features] and, for each position [batch, time], the
    `worst` feature (of the largest |difference| / allowed), its `difference` and what is `allowed`
    by `tolerance`. A position is `undefined` if it is NaN in both paths. Positions that were not
    `fed` (None: all were) are not compared."""

    cached: Tensor
    uncached: Tensor
    worst: Tensor
    difference: Tensor
    allowed: Tensor
    undefined: Tensor
    tolerance: Tolerance
    fed: Tensor | None = None

    @property
    def excess(self) -> Tensor:
        """|difference| / allowed [batch, time]; inf where only one path is finite."""
        return _ratio(self.difference, self.allowed)

    @property
    def diverges(self) -> Tensor:
        """Where the paths differ by more than is allowed: bool [batch, time]."""
        return self.excess > 1


def compare(
    cached: Tensor, uncached: Tensor, tolerance: Tolerance, fed: Tensor | None = None
) -> Comparison:
    """Compares `cached` with `uncached`, both [batch, time, features], within `tolerance`, at the
    positions that were `fed` [batch, time] (default: all).

    Equal infinities are equal (a model may mask vocabulary entries). An entry that is finite in one
    path only differs by inf. A position with an entry that is NaN in both paths is undefined.
    """
    a, b = cached.double(), uncached.double()
    entries, both_nan = (a - b).abs(), None
    if not bool(entries.isfinite().all()):
        both_nan = a.isnan() & b.isnan()
        entries = entries.masked_fill((a == b) | both_nan, 0.0)
        entries = entries.masked_fill(entries.isnan(), torch.inf)
    if fed is not None:
        entries = entries.masked_fill(~fed[..., None], 0.0)
    worst = _ratio(entries, tolerance.allowed).argmax(-1)  # [batch, time]
    difference, bound = (
        t.gather(-1, worst[..., None])[..., 0] for t in (entries, tolerance.allowed)
    )
    undefined = torch.zeros_like(worst, dtype=torch.bool)
    if both_nan is not None:
        undefined = both_nan.any(-1) & (difference <= bound)
        undefined = undefined if fed is None else undefined & fed
    return Comparison(cached, uncached, worst, difference, bound, undefined, tolerance, fed)


def _ratio(difference: Tensor, allowed: Tensor) -> Tensor:
    """Returns difference / allowed, but 0 where the difference is 0 and inf where it is inf,
    whatever is allowed."""
    ratio = difference / allowed
    if bool(ratio.isfinite().all()):
        return ratio
    return ratio.masked_fill(difference == 0, 0.0).masked_fill(difference == torch.inf, torch.inf)


def verdict_from(comparison: Comparison, case: Case, prefixwise: bool = False) -> Verdict:
    """Returns the verdict on `case`, whose cached and uncached logits `comparison` compares."""
    tolerance = comparison.tolerance
    fed = comparison.fed if comparison.fed is not None else torch.ones_like(tolerance.weak)
    weak = tolerance.weak & ~comparison.undefined & fed
    excess = comparison.excess
    evidence: dict[str, Any] = {
        "positions": int((~comparison.undefined & ~weak & fed).sum()),
        "weak_positions": int(weak.sum()),
        "excess": float(excess.max()),
        "worst": divmod(int(excess.argmax()), excess.shape[1]),
        "dtype": dtype_name(tolerance.dtype),
        "basis": tolerance.basis,
        "prefixwise": prefixwise,
    }
    if bool((excess > 1).any()):
        return Verdict(
            "diverged",
            **evidence,
            first=_find_first(comparison, case),
            impact=_measure_impact(comparison),
            differences=_nested(comparison.difference),
            allowed=_nested(comparison.allowed),
        )
    reason = None
    if bool(comparison.undefined.any()):
        reason = "both paths gave NaN"
    elif not bool(comparison.uncached.any()):
        reason = "all logits of both paths are zero"
    if reason:
        return Verdict("discarded", dtype=evidence["dtype"], reason=reason)
    if not bool(fed.any()):
        return Verdict("discarded", reason="no call returned the logits of a text token")
    if not evidence["positions"]:
        return Verdict(
            "weak",
            **evidence,
            reason=f"rounding in {evidence['dtype']} moves every logit by too much to tell",
        )
    return Verdict("agreed", **evidence)


def _measure_impact(comparison: Comparison) -> Impact:
    """Measures how the difference changes predictions, where both paths are finite."""
    a, b = comparison.cached.double(), comparison.uncached.double()
    fed = comparison.fed if comparison.fed is not None else torch.ones_like(comparison.undefined)
    a, b = a[fed], b[fed]  # [positions, vocab]
    finite = a.isfinite() & b.isfinite()
    if not bool(finite.all()):
        usable = ~((a.isnan() | b.isnan() | (a == torch.inf) | (b == torch.inf)).any(-1))
        a, b, finite = a[usable], b[usable], finite[usable]
    if not len(a):
        return Impact(0, 0, None, None)
    log_p, log_q = b.log_softmax(-1), a.log_softmax(-1)
    terms = torch.where(log_p == -torch.inf, 0.0, log_p.exp() * (log_p - log_q))
    change = (a - b).masked_fill(~finite, 0.0).norm()
    size = b.masked_fill(~finite, 0.0).norm()
    return Impact(
        positions=len(a),
        argmax_flips=int((a.argmax(-1) != b.argmax(-1)).sum()),
        kl=float(terms.sum(-1).clamp_min(0).max()),
        relative_l2=float(change / size) if float(size) else None,
    )


def _find_first(comparison: Comparison, case: Case) -> Difference:
    """Finds the first column that diverges and, in it, the row with the largest excess."""
    excess = comparison.excess
    column = int((excess > 1).any(0).nonzero()[0])
    row = int(excess[:, column].argmax())
    token = int(comparison.worst[row, column])
    step = next(step for step in case.steps() if step.start <= column < step.stop)
    return Difference(
        step=step.index,
        kind=step.kind,
        row=row,
        position=int(layout(case).position[row, column]),
        column=column,
        token=token,
        cached=float(comparison.cached[row, column, token]),
        uncached=float(comparison.uncached[row, column, token]),
        difference=float(comparison.difference[row, column]),
        allowed=float(comparison.allowed[row, column]),
    )


def _nested(values: Tensor) -> tuple[tuple[float, ...], ...]:
    return tuple(tuple(row) for row in values.tolist())
