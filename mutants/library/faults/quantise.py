"""Wrong quantisation: codes and scales do not match, or codes leave their range."""

from typing import Any

import torch

from kvfuzz.case.schedule import Reorder
from mutants.mutant import mutant, steps

NEEDS = {
    "cache": ("int8",),
    "mix": ("uniform", "alternating"),
    "kv_heads": (2,),
    "head_dim": (8,),
    "layers": (2, 3),
    "scale": (1.0, 0.7),
}
INT8: dict[str, Any] = {"cache": "int8", "head_dim": 8}


@mutant(".storage.int8:dequantised", site="0.cache", witness=steps(1, **INT8))
def takes_the_scale_of_the_other_head(real):
    """Each head is dequantised with the scale of the other head."""
    return lambda codes, scale: real(codes, scale.roll(1, 1))


@mutant(".storage.int8:dequantised", site="0.cache", witness=steps(2, **INT8))
def takes_the_scale_of_the_first_slot(real):
    """Every slot of a row is dequantised with the scale of the first one."""
    return lambda codes, scale: real(codes, scale[:, :, :1].expand_as(scale))


@mutant(".storage.int8:dequantised", site="0.cache", witness=steps(2, **INT8))
def takes_the_scale_of_the_newest_slot(real):
    """Every slot is dequantised with the scale of the newest one, as if one scale served all."""
    return lambda codes, scale: real(codes, scale[:, :, -1:].expand_as(scale))


@mutant(".storage.int8:quantised", site="0.cache", witness=steps(1, **INT8))
def clips_at_a_quarter(real):
    """Codes are clipped at 32 of 127: large numbers come back too small."""

    def quantised(x):
        codes, scale = real(x)
        return codes.clamp(-32, 32), scale

    return quantised


@mutant(".storage.int8:quantised", site="0.cache", witness=steps(1, **INT8))
def wraps_round(real):
    """Codes of 127 overflow int8 and come back with the opposite sign."""

    def quantised(x):
        codes, scale = real(x)
        return torch.where(codes.abs() == 127, -codes, codes), scale

    return quantised


@mutant(
    ".storage.int8:Int8.reorder",
    site="0.cache",
    witness=steps(1, Reorder((1, 0)), 1, rows=2, **INT8),
)
def leaves_the_scales_in_their_rows(real):
    """reorder moves the codes, but not their scales."""

    def reorder(self, rows):
        still = torch.arange(len(rows)) % len(self.keys[0])
        kept = [[scale[still] for scale in each] for each in (self.key_scales, self.value_scales)]
        real(self, rows)
        self.key_scales[:], self.value_scales[:] = kept

    return reorder
