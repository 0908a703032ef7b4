"""Wrong dtype: keys or values lose precision when they are stored."""

import torch

from mutants.mutant import mutant, steps


@mutant("store", site="0.cache", witness=steps(1))
def rounds_to_float16(real):
    """Keys and values are stored in float16, whatever the dtype of the model."""
    return _rounded(real, torch.float16)


@mutant("store", site="0.cache", witness=steps(1))
def rounds_to_bfloat16(real):
    """Keys and values are stored in bfloat16, whatever the dtype of the model."""
    return _rounded(real, torch.bfloat16)


@mutant("store", site="0.cache", witness=steps(1))
def rounds_to_int8(real):
    """Keys and values are rounded to int8, with a scale per token and head (absmax / 127)."""

    def coarse(x):
        step = x.abs().amax(-1, keepdim=True).clamp_min(1e-30) / 127
        return (x / step).round().to(torch.int8).to(x.dtype) * step

    return lambda cache, layer, key, value: real(cache, layer, coarse(key), coarse(value))


@mutant("store", site="0.cache", witness=steps(1))
def rounds_values_alone(real):
    """Values are stored in float16; keys keep the dtype of the model."""
    return lambda cache, layer, key, value: real(
        cache, layer, key, value.to(torch.float16).to(value.dtype)
    )


def _rounded(real, dtype):
    return lambda cache, layer, key, value: real(
        cache, layer, key.to(dtype).to(key.dtype), value.to(dtype).to(value.dtype)
    )
