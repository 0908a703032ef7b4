"""How far two states are apart, and how far rounding alone may put them."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from kvfuzz.subjects.dtypes import ROUNDOFF

MULTIPLE = 64.0
"""What is allowed, in units of the noise of a state: one perturbation alone is drawn."""

HUGE = 1e30
"""Larger numbers stand for infinity, as in a mask."""

# Two unlike numbers that stand for infinity are at least so far apart, whatever their dtype.
_APART = HUGE * 2.0**-53
# The roundoff of float32: what is coarser has noise of its own at every step.
_FINE = 2.0**-24
# A number that stands for "never" beside ordinary ones must not set their scale.
_OUTLIER = 1e4
_ORDINARY = 1e3


def difference_of(found: Tensor, right: Tensor) -> Tensor:
    """|found - right| in float64: nought where both stand for the same infinity, or are NaN; inf
    where one alone is."""
    difference = (found.double() - right.double()).abs_()
    whole = not found.is_floating_point() or not difference.numel()
    if whole or float(difference.max()) < _APART:
        return difference
    mine, theirs = _finite(found), _finite(right)
    same = (mine == theirs) | (mine.isnan() & theirs.isnan())
    difference = (mine - theirs).abs()
    return difference.masked_fill(same, 0.0).nan_to_num(nan=math.inf, posinf=math.inf)


def allowed_for(right: Tensor, noise: float, scale: float | None = None) -> float:
    """What is allowed for a state as large as `right`, whose `scale` may be known; nothing for
    integers."""
    if not right.is_floating_point():
        return 0.0
    roundoff = ROUNDOFF.get(right.dtype, 2.0**-24)
    # Of what has few digits so much would be all of it.
    few = 4 * roundoff if roundoff <= _FINE else roundoff / 4
    return MULTIPLE * (noise + few) * (scale_of(right) if scale is None else scale)


def scale_of(values: Tensor) -> float:
    """The largest |entry| of `values` that is a number, outliers apart."""
    sizes = values.detach().double().abs()
    largest = float(sizes.max()) if sizes.numel() else 0.0
    if largest < _ORDINARY:
        return largest
    sizes = sizes[(sizes < HUGE) & (sizes > 0)]
    if not sizes.numel():
        return 0.0
    return min(float(sizes.max()), _OUTLIER * float(sizes.median()))


def largest_along(found: Tensor, right: Tensor, axis: int | None) -> tuple[float, ...]:
    """The largest |found - right| at each place along `axis`, or in all (one)."""
    if not found.numel() or (found.dtype == right.dtype and torch.equal(found, right)):
        return (0.0,) * (1 if axis is None else found.shape[axis])
    values = _along((found.double() - right.double()).abs_(), axis)
    if not found.is_floating_point() or all(value < _APART for value in values):
        return values
    return _along(difference_of(found, right), axis)


def _along(difference: Tensor, axis: int | None) -> tuple[float, ...]:
    if axis is None:
        return (float(difference.max()),)
    others = [other for other in range(difference.dim()) if other != axis]
    return tuple((difference.amax(others) if others else difference).tolist())


def close(found: Tensor, right: Tensor) -> bool:
    """Whether two states of one shape differ by less than any noise."""
    difference = difference_of(found, right)
    return not difference.numel() or float(difference.max()) <= allowed_for(right, 0.0)


def _finite(values: Tensor) -> Tensor:
    values = values.detach().double()
    return values.masked_fill(values > HUGE, math.inf).masked_fill(values < -HUGE, -math.inf)


def ratio(difference: float, allowed: float) -> float:
    """difference / allowed, inf where nothing is allowed."""
    if difference == 0:
        return 0.0
    return difference / allowed if allowed > 0 else math.inf
