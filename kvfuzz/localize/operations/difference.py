"""Measures how far apart two states are, and how much of that rounding alone explains."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from kvfuzz.subjects.dtypes import ROUNDOFF

MULTIPLE = 64.0
"""What is allowed, in units of the noise of a state. Only one perturbation is drawn, which may
understate the noise."""

HUGE = 1e30
"""Larger numbers stand for infinity, as in a mask."""

# Two different numbers that stand for infinity are at least this far apart, in any dtype.
_APART = HUGE * 2.0**-53
# The roundoff of float32. A coarser dtype rounds visibly at every step, which the noise measures.
_FINE = 2.0**-24
# A number that stands for "never" next to ordinary ones must not set their scale.
_OUTLIER = 1e4
_ORDINARY = 1e3


def abs_difference(found: Tensor, right: Tensor) -> Tensor:
    """Returns |found - right| in float64: zero where both stand for the same infinity or are NaN,
    inf where only one does."""
    difference = (found.double() - right.double()).abs_()
    whole = not found.is_floating_point() or not difference.numel()
    # Nearly all states are ordinary: the slow comparison below is for those that may hold infinity.
    if whole or float(difference.max()) < _APART:
        return difference
    mine, theirs = _with_infinities(found), _with_infinities(right)
    same = (mine == theirs) | (mine.isnan() & theirs.isnan())
    difference = (mine - theirs).abs()
    return difference.masked_fill(same, 0.0).nan_to_num(nan=math.inf, posinf=math.inf)


def allowed_for(right: Tensor, noise: float, scale: float | None = None) -> float:
    """Returns the difference allowed for a state as large as `right`, whose relative noise is
    `noise` and whose `scale` may be known; zero for integers."""
    if not right.is_floating_point():
        return 0.0
    roundoff = ROUNDOFF.get(right.dtype, 2.0**-24)
    # 64 x 4 roundoffs of bfloat16 would be as large as the state itself.
    few = 4 * roundoff if roundoff <= _FINE else roundoff / 4
    return MULTIPLE * (noise + few) * (scale_of(right) if scale is None else scale)


def scale_of(values: Tensor) -> float:
    """Returns the largest finite |entry| of `values`, without outliers."""
    if not values.numel():
        return 0.0
    sizes = values.double().abs()
    largest = sizes.max().item()
    if largest < _ORDINARY:
        return float(largest)
    sizes = sizes[(sizes < HUGE) & (sizes > 0)]
    if not sizes.numel():
        return 0.0
    return min(float(sizes.max()), _OUTLIER * float(sizes.median()))


def largest_along(found: Tensor, right: Tensor, axis: int | None) -> tuple[float, ...]:
    """Returns the largest |found - right| at each index of `axis`; one number without an axis."""
    if not found.numel() or (found.dtype == right.dtype and torch.equal(found, right)):
        return (0.0,) * (1 if axis is None else found.shape[axis])
    values = _along((found.double() - right.double()).abs_(), axis)
    if found.is_floating_point():
        for value in values:
            if not value < _APART:
                return _along(abs_difference(found, right), axis)
    return values


def _along(difference: Tensor, axis: int | None) -> tuple[float, ...]:
    if axis is None:
        return (difference.max().item(),)
    others = [other for other in range(difference.dim()) if other != axis]
    return tuple((difference.amax(others) if others else difference).tolist())


def is_close(found: Tensor, right: Tensor) -> bool:
    """Whether two states of one shape differ by less than any noise."""
    difference = abs_difference(found, right)
    return not difference.numel() or float(difference.max()) <= allowed_for(right, 0.0)


def _with_infinities(values: Tensor) -> Tensor:
    values = values.detach().double()
    return values.masked_fill(values > HUGE, math.inf).masked_fill(values < -HUGE, -math.inf)


def ratio(difference: float, allowed: float) -> float:
    """Returns difference / allowed; inf where nothing is allowed."""
    if difference == 0:
        return 0.0
    return difference / allowed if allowed > 0 else math.inf
