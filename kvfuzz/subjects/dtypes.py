"""The dtypes that subjects compute in and caches store, and how coarsely each rounds."""

from __future__ import annotations

from collections import Counter

import torch

ROUNDOFF = {
    torch.float64: 2.0**-53,
    torch.float32: 2.0**-24,
    torch.float16: 2.0**-11,
    torch.bfloat16: 2.0**-8,
    # The dtypes that only a cache has. int8 is relative to the largest entry of what is scaled
    # together, so that a typical entry loses more than half a step in 127.
    torch.int8: 2.0**-7,
    torch.float8_e4m3fn: 2.0**-4,
    torch.float8_e5m2: 2.0**-3,
}


COMPUTED = (torch.float64, torch.float32, torch.bfloat16, torch.float16)


def epsilon(dtype: torch.dtype) -> float:
    """The distance from 1 to the next number of `dtype`."""
    return 2 * ROUNDOFF[dtype]


def dtype_name(dtype: torch.dtype) -> str:
    """`float32` for torch.float32."""
    return str(dtype).removeprefix("torch.")


def coarsest(*dtypes: torch.dtype) -> torch.dtype:
    """The one of `dtypes` that rounds most."""
    return max(dtypes, key=lambda dtype: ROUNDOFF.get(dtype, 0.0))


def compute_dtype(logits: torch.dtype, subject: object) -> torch.dtype:
    """The dtype whose rounding the logits of `subject` show: the coarser of theirs and of the one
    that most of its `model`'s parameters have, since a bfloat16 model whose logits are made float32
    rounds as bfloat16 does. float64 for one that runs in its float64 twin, whatever it holds
    outside."""
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
