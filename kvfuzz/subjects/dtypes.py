"""The dtypes that subjects compute in and caches store, and the roundoff of each."""

from __future__ import annotations

from collections import Counter

import torch

ROUNDOFF = {
    torch.float64: 2.0**-53,
    torch.float32: 2.0**-24,
    torch.float16: 2.0**-11,
    torch.bfloat16: 2.0**-8,
    # Dtypes of caches only. An int8 step is relative to the largest entry of a group that shares a
    # scale, so a typical entry loses more than half a step in 127.
    torch.int8: 2.0**-7,
    torch.float8_e4m3fn: 2.0**-4,
    torch.float8_e5m2: 2.0**-3,
}
"""The unit roundoff of each dtype: half the distance from 1 to the next number."""

COMPUTED = (torch.float64, torch.float32, torch.bfloat16, torch.float16)
"""The dtypes that a subject can compute in."""


def epsilon(dtype: torch.dtype) -> float:
    """Returns the distance from 1 to the next number of `dtype`."""
    return 2 * ROUNDOFF[dtype]


def dtype_name(dtype: torch.dtype) -> str:
    """Returns `float32` for torch.float32."""
    return str(dtype).removeprefix("torch.")


def coarsest(*dtypes: torch.dtype) -> torch.dtype:
    """Returns the one of `dtypes` that rounds most."""
    return max(dtypes, key=lambda dtype: ROUNDOFF.get(dtype, 0.0))


def compute_dtype(logits: torch.dtype, subject: object) -> torch.dtype:
    """Returns the dtype whose rounding the logits of `subject` show.

    That is the coarser of the dtype of the `logits` and that of most parameters of its `model`: a
    bfloat16 model that casts its logits to float32 still rounds as bfloat16 does. A subject that
    runs in its float64 twin computes in float64, whatever dtype its weights have outside.
    """
    if getattr(getattr(subject, "twin", None), "always", None) is True:
        return torch.float64
    found = [dtype for dtype in (logits,) if dtype in COMPUTED]
    model = getattr(subject, "model", None)
    if isinstance(model, torch.nn.Module):
        counts = Counter[torch.dtype]()
        for parameter in model.parameters():
            if parameter.dtype in COMPUTED:
                counts[parameter.dtype] += parameter.numel()
        found += [dtype for dtype, _ in counts.most_common(1)]
    return coarsest(*found) if found else logits
