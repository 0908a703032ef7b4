"""Computes the tolerance: how far apart the logits of two correct paths may be.

The two paths group floating-point operations differently, so their logits differ by rounding. How
far depends on the model and the prompt: over random correct decoders the difference, in units of
eps x scale, ranges over four orders of magnitude. No constant fits that. So the noise of each case
is measured (`kvfuzz.oracle.noise`), on the uncached path alone, and the allowed difference at a
position is

    kappa x (sqrt(noise x the largest noise of the case) + 2 x u x scale)

with u the unit roundoff of the dtype and scale the largest |uncached logit| of the position. Why
the geometric mean: noise is a maximum of few samples. A position whose samples happened to be small
gets more than they say, and one ill-conditioned position cannot hide faults at the others.

If the noise of a subject cannot be measured, the allowed difference is FACTORS x eps x scale. That
holds for weights of the scale that the strategies draw (0.7 to 2 times width^-1/2), and for no
others. docs/tolerance.md has the measurements behind both.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Literal

import torch
from torch import Tensor

from kvfuzz.subjects.dtypes import ROUNDOFF, dtype_name, epsilon

Basis = Literal["measured", "own dtype", "constant", "declared", "least"]
"""The source of a tolerance: the noise of the case, measured by the float64 twin or, without it, in
the subject's own dtype; a constant; or what the subject declares. `least` is that of a case without
noise: no case is allowed less."""


# The bound in units of the floor, the sum in parentheses above. Correct decoders reach half of the
# bound at most.
KAPPA = {torch.float64: 8.0, torch.float32: 8.0}
KAPPA_COARSE = 6.0

WEAK = 0.3
"""A position where more than this share of the scale is allowed is weak: it could hide any
fault."""

# The fallback: (least width of the residual stream, factors by dtype).
FACTORS = (
    (8, {"float64": 256.0, "float32": 256.0, "bfloat16": 64.0, "float16": 128.0}),
    (4, {"float64": 8192.0, "float32": 8192.0, "bfloat16": 512.0, "float16": 512.0}),
    (1, {"float64": 2.0**18, "float32": 2.0**18, "bfloat16": 1024.0, "float16": 2048.0}),
)

# An outlier is a logit of this size that is also this many times the median of its position.
OUTLIER = 1e4
OUTLIER_RATIO = 1e3


@dataclass(frozen=True, slots=True)
class Tolerance:
    """The `allowed` |difference| of each entry, float64 [batch, time, features]; `weak`
    [batch, time], where so much is allowed that it could hide any fault; the `dtype` whose rounding
    is allowed for; and the `basis`."""

    allowed: Tensor
    weak: Tensor
    dtype: torch.dtype
    basis: Basis

    def between(self, start: int, stop: int) -> Tolerance:
        """Returns the tolerance of the positions `start` to `stop`."""
        return self.at(lambda values: values[:, start:stop])

    def at(self, places: Callable[[Tensor], Tensor]) -> Tolerance:
        """Returns the tolerance of what `places` takes from a tensor [batch, time, ...]."""
        return replace(self, allowed=places(self.allowed), weak=places(self.weak))

    def narrowed(self, other: Tolerance) -> Tolerance:
        """Returns this tolerance where the `other` does not allow less."""
        allowed = torch.minimum(self.allowed, other.allowed)
        return replace(self, allowed=allowed, weak=self.weak & other.weak)


def measured(
    uncached: Tensor,
    noise: Tensor,
    dtype: torch.dtype,
    leeway: float = 1.0,
    basis: Basis = "measured",
) -> Tolerance:
    """Returns the tolerance of `uncached` [batch, time, features], whose `noise` [batch, time] was
    measured for `dtype`. `leeway` multiplies the bound (`kvfuzz.subjects.calibration`)."""
    noise = noise.double()
    finite = noise.isfinite()
    largest = noise.masked_fill(~finite, 0.0).amax()
    shares, scale = _shares(uncached)
    floor = (noise * largest).sqrt().masked_fill(~finite, torch.inf)
    floor = floor + 2 * ROUNDOFF[dtype] * scale
    bound = kappa(dtype) * leeway * floor
    return Tolerance(bound[..., None] * shares, bound > WEAK * scale, dtype, basis)


def least(uncached: Tensor, dtype: torch.dtype, leeway: float = 1.0) -> Tolerance:
    """Returns the tolerance of `uncached` [batch, time, features] if its noise were zero."""
    return measured(uncached, torch.zeros_like(uncached[..., 0]), dtype, leeway, "least")


def constant(
    uncached: Tensor, width: int | None, dtype: torch.dtype, leeway: float = 1.0
) -> Tolerance:
    """Returns the tolerance of `uncached` [batch, time, features] if the noise cannot be measured.
    `width` is the size of the residual stream, if the subject says."""
    return _of_scale(uncached, leeway * factor(dtype, width) * epsilon(dtype), dtype, "constant")


def declared(uncached: Tensor, bound: float, dtype: torch.dtype) -> Tolerance:
    """Returns the tolerance of a subject that declares how far its lossy cache may move a logit: by
    `bound` x scale."""
    return _of_scale(uncached, bound, dtype, "declared")


def kappa(dtype: torch.dtype) -> float:
    """Returns the bound in units of the floor."""
    return KAPPA.get(dtype, KAPPA_COARSE)


def factor(dtype: torch.dtype, width: int | None) -> float:
    """Returns the multiple of eps x scale that is allowed if the noise cannot be measured. `width`
    is the size of the residual stream; None counts as wide."""
    name = dtype_name(dtype)
    return next(
        # Dtypes of caches only are not in the tables and get the factor of the coarsest there.
        table.get(name, table["bfloat16"])
        for least, table in FACTORS
        if width is None or width >= least
    )


def _of_scale(uncached: Tensor, bound: float, dtype: torch.dtype, basis: Basis) -> Tolerance:
    shares, scale = _shares(uncached)
    # A declared bound is the subject's promise, so no position is weak; inf declares no bound.
    says_nothing = bound > WEAK if basis != "declared" else math.isinf(bound)
    weak = (scale > 0) & torch.tensor(says_nothing, device=scale.device)
    allowed = torch.where(scale > 0, bound * scale, 0.0)
    return Tolerance(allowed[..., None] * shares, weak, dtype, basis)


def _shares(uncached: Tensor) -> tuple[Tensor, Tensor]:
    """Returns the size of each entry as a multiple of its position's scale [batch, time, features],
    and that scale [batch, time].

    The multiple is 1 for all entries except outliers (OUTLIER), which a model writes over masked
    vocabulary entries: they do not count towards the scale, and are judged by their own size.
    """
    sizes = uncached.double().abs().nan_to_num(nan=0.0, posinf=0.0)
    outlier = outliers(uncached)
    scale = sizes.masked_fill(outlier, 0.0).amax(-1)
    return torch.where(outlier, sizes / scale[..., None], 1.0), scale


def outliers(uncached: Tensor) -> Tensor:
    """Returns which entries of `uncached` [batch, time, features] are outliers."""
    sizes = uncached.double().abs().nan_to_num(nan=0.0, posinf=0.0)
    large = sizes > OUTLIER
    if not bool(large.any()):
        return large
    return large & (sizes > OUTLIER_RATIO * sizes.median(-1, keepdim=True).values)
