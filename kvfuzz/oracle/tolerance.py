"""How far apart two honest paths may be.

The two paths group floating-point operations differently, so their logits differ by rounding, and
how far rounding travels depends on the model and the prompt: over random decoders the honest
difference, in units of eps x scale, ranges over four orders of magnitude. No constant fits that. So
the noise of each case is measured (`kvfuzz.oracle.noise`), on the uncached path alone, and what is
allowed at a position is

    kappa x (sqrt(noise x the largest noise of the case) + 2 x u x scale)

with u the unit roundoff of the dtype and scale the largest |uncached logit| there. The geometric
mean keeps a position whose few samples happened to be small from being held to them, and keeps one
ill-conditioned position from hiding the others.

A subject whose noise cannot be measured is judged by a constant, FACTORS x eps x scale, which holds
for weights of the scale that the strategies draw (0.7 to 2 times width^-1/2) and nowhere else.
docs/tolerance.md has the measurements behind both.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Literal

import torch
from torch import Tensor

from kvfuzz.subjects.dtypes import ROUNDOFF, dtype_name, epsilon

Basis = Literal["measured", "constant", "declared"]
"""Where a tolerance comes from: the noise of this case, a constant, or the subject's own word."""


# The bound, in units of the floor, and half of it is the most that clean decoders may come to.
KAPPA = {torch.float64: 8.0, torch.float32: 8.0}
KAPPA_COARSE = 6.0

WEAK = 0.3
"""Where more than this share of the scale is allowed, agreement says nothing."""

# The fallback: (the least width that a factor holds for, the factors).
FACTORS = (
    (8, {"float64": 256.0, "float32": 256.0, "bfloat16": 64.0, "float16": 128.0}),
    (4, {"float64": 8192.0, "float32": 8192.0, "bfloat16": 512.0, "float16": 512.0}),
    (1, {"float64": 2.0**18, "float32": 2.0**18, "bfloat16": 1024.0, "float16": 2048.0}),
)

# A logit that is an outlier is this large, and this many times the median of its position.
OUTLIER = 1e4
OUTLIER_RATIO = 1e3


@dataclass(frozen=True, slots=True)
class Tolerance:
    """The `allowed` |difference| of each entry [batch, time, features] in float64; where that is so
    much that it says nothing, `weak` [batch, time]; the `dtype` whose rounding it allows for; and
    its `basis`."""

    allowed: Tensor
    weak: Tensor
    dtype: torch.dtype
    basis: Basis

    def between(self, start: int, stop: int) -> Tolerance:
        """The tolerance of the positions `start` to `stop` alone."""
        return self.at(lambda values: values[:, start:stop])

    def at(self, places: Callable[[Tensor], Tensor]) -> Tolerance:
        """The tolerance of the `places` that are taken from [batch, time, ...]."""
        return replace(self, allowed=places(self.allowed), weak=places(self.weak))


def measured(uncached: Tensor, noise: Tensor, dtype: torch.dtype, leeway: float = 1.0) -> Tolerance:
    """The tolerance for `uncached` [batch, time, features] of a path whose `noise` [batch, time]
    was measured for `dtype`. `leeway` multiplies the bound (see `kvfuzz.subjects.calibration`)."""
    noise = noise.double()
    finite = noise.isfinite()
    largest = noise.masked_fill(~finite, 0.0).amax()
    shares, scale = _shares(uncached)
    floor = (noise * largest).sqrt().masked_fill(~finite, torch.inf)
    floor = floor + 2 * ROUNDOFF[dtype] * scale
    bound = kappa(dtype) * leeway * floor
    return Tolerance(bound[..., None] * shares, bound > WEAK * scale, dtype, "measured")


def constant(
    uncached: Tensor, width: int | None, dtype: torch.dtype, leeway: float = 1.0
) -> Tolerance:
    """The tolerance for `uncached` [batch, time, features] of a path whose noise cannot be
    measured, and whose residual stream has `width` features, if it tells."""
    return _of_scale(uncached, leeway * factor(dtype, width) * epsilon(dtype), dtype, "constant")


def declared(uncached: Tensor, bound: float, dtype: torch.dtype) -> Tolerance:
    """The tolerance of a subject that says itself how far a lossy cache may move its logits: by
    `bound` x scale."""
    return _of_scale(uncached, bound, dtype, "declared")


def kappa(dtype: torch.dtype) -> float:
    """The bound in units of the floor."""
    return KAPPA.get(dtype, KAPPA_COARSE)


def factor(dtype: torch.dtype, width: int | None) -> float:
    """The multiple of eps x scale that is allowed where no noise can be measured. `width` is the
    size of the residual stream; a subject that does not tell is taken to be wide."""
    name = dtype_name(dtype)
    return next(
        # A dtype that only a cache has rounds as coarsely as the coarsest of these.
        table.get(name, table["bfloat16"])
        for least, table in FACTORS
        if width is None or width >= least
    )


def _of_scale(uncached: Tensor, bound: float, dtype: torch.dtype, basis: Basis) -> Tolerance:
    shares, scale = _shares(uncached)
    # What a subject declares, it answers for; unless it declares that there is no bound.
    says_nothing = bound > WEAK if basis != "declared" else math.isinf(bound)
    weak = (scale > 0) & torch.tensor(says_nothing, device=scale.device)
    allowed = torch.where(scale > 0, bound * scale, 0.0)
    return Tolerance(allowed[..., None] * shares, weak, dtype, basis)


def _shares(uncached: Tensor) -> tuple[Tensor, Tensor]:
    """The size that counts for each entry as a multiple of its position's scale [batch, time,
    features], and that scale [batch, time].

    All entries of a position count the same, but for outliers (see OUTLIER), which a model writes
    over the entries of vocabulary that it masks: they do not count to the scale, and are judged by
    their own size.
    """
    sizes = uncached.double().abs().nan_to_num(nan=0.0, posinf=0.0)
    outlier = outliers(uncached)
    scale = sizes.masked_fill(outlier, 0.0).amax(-1)
    return torch.where(outlier, sizes / scale[..., None], 1.0), scale


def outliers(uncached: Tensor) -> Tensor:
    """Which entries of `uncached` [batch, time, features] are outliers."""
    sizes = uncached.double().abs().nan_to_num(nan=0.0, posinf=0.0)
    large = sizes > OUTLIER
    if not bool(large.any()):
        return large
    return large & (sizes > OUTLIER_RATIO * sizes.median(-1, keepdim=True).values)
