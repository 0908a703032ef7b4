"""How far apart two honest paths may be.

The two paths group floating-point operations differently, so their logits differ by rounding:
by about eps times the row's scale, times a factor that depends on the model's conditioning. Here
that factor is a constant per dtype and width, and the allowed difference of a position is

    factor(dtype, width) x eps(dtype) x max |uncached logit| of that position.

The factors hold for weights of the scale that the strategies draw (0.7 to 2 times width^-1/2).
For residual streams of at least 8 they are the worst of about 600 clean models times 3 or more:
observed maxima of |difference| / (eps x scale) are 47 (float64), 44 (float32), 15.6 (bfloat16)
and 41 (float16, at width 8 and scale 2). Normalising over fewer features is ill-conditioned, and
over two or three it can turn rounding into anything; so narrower streams have factors of their
own, measured by `benchmarks/narrow_tolerance.py`. docs/tolerance.md has the tables, and the
detection that the wider factors cost.
"""

from __future__ import annotations

import torch
from torch import Tensor

# (the least width that a factor holds for, the factors)
FACTORS = (
    (8, {"float64": 256.0, "float32": 256.0, "bfloat16": 64.0, "float16": 128.0}),
    (4, {"float64": 8192.0, "float32": 8192.0, "bfloat16": 512.0, "float16": 512.0}),
    (1, {"float64": 2.0**18, "float32": 2.0**18, "bfloat16": 1024.0, "float16": 2048.0}),
)

# A logit that is an outlier is this large, and this many times the median of its position.
OUTLIER = 1e4
OUTLIER_RATIO = 1e3
_KNOWN = (torch.float64, torch.float32, torch.bfloat16, torch.float16)


def factor(dtype: torch.dtype, width: int | None) -> float:
    """The multiple of eps x scale that is allowed. `width` is the size of the residual stream;
    a subject that does not tell is taken to be wide."""
    name = str(dtype).removeprefix("torch.")
    return next(table[name] for least, table in FACTORS if width is None or width >= least)


def allowed(uncached: Tensor, width: int | None, dtype: torch.dtype | None = None) -> Tensor:
    """The allowed |difference| of each entry of `uncached` [batch, time, features], in float64,
    for a model that computes in `dtype` (default: that of `uncached`).

    It comes from the uncached path alone, so that a fault of the cached path cannot widen its own
    tolerance. All entries of a position are allowed the same, but for outliers (see `OUTLIER`),
    which a model writes over the entries of vocabulary that it masks: they do not count to the
    scale, and are judged by their own size.
    """
    dtype = dtype or uncached.dtype
    sizes = uncached.double().abs().nan_to_num(nan=0.0, posinf=0.0)
    typical = sizes.median(-1, keepdim=True).values
    outlier = (sizes > OUTLIER) & (sizes > OUTLIER_RATIO * typical)
    scale = sizes.masked_fill(outlier, 0.0).amax(-1, keepdim=True)
    scales = torch.where(outlier, sizes, scale)
    return factor(dtype, width) * torch.finfo(dtype).eps * scales


def compute_dtype(logits: torch.dtype, model: object) -> torch.dtype:
    """The coarsest of the dtypes that a subject's logits and its `model`'s parameters have: a
    bfloat16 model whose logits are made float32 rounds as bfloat16 does."""
    found = [logits]
    if isinstance(model, torch.nn.Module):
        found += [p.dtype for p in model.parameters() if p.is_floating_point()]
    return max((d for d in found if d in _KNOWN), key=lambda d: torch.finfo(d).eps, default=logits)
