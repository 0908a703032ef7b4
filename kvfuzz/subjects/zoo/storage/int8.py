"""Keys and values of each layer, concatenated in int8, with a scale for each row, head and slot.

So the rounding of one token does not depend on another.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

import torch
from torch import Tensor

from kvfuzz.subjects.zoo.config import DecoderConfig
from kvfuzz.subjects.zoo.storage.base import Joined, Pair, zeros


@dataclass(slots=True)
class Int8(Joined):
    """Per layer the codes [batch, kv_heads, length, head_dim], and scales [batch, kv_heads, length,
    1] in the dtype that the decoder computes in."""

    LISTS = ("keys", "values", "key_scales", "value_scales")

    keys: list[Tensor]
    values: list[Tensor]
    key_scales: list[Tensor]
    value_scales: list[Tensor]

    @classmethod
    def empty(
        cls, config: DecoderConfig, batch: int, dtype: torch.dtype, device: torch.device
    ) -> Self:
        codes = [(batch, config.kv_heads, 0, config.head_dim)] * config.layers
        scales = [(batch, config.kv_heads, 0, 1)] * config.layers
        lists = [(codes, torch.int8), (codes, torch.int8), (scales, dtype), (scales, dtype)]
        return cls(*(zeros(shapes, kind, device) for shapes, kind in lists))

    def write(self, layer: int, _start: int, key: Tensor, value: Tensor) -> None:
        for new, codes, scales in (
            (key, self.keys, self.key_scales),
            (value, self.values, self.value_scales),
        ):
            code, scale = quantised(new)
            codes[layer] = torch.cat((codes[layer], code), dim=2)
            scales[layer] = torch.cat((scales[layer], scale), dim=2)

    def read(self, layer: int) -> Pair:
        return (
            dequantised(self.keys[layer], self.key_scales[layer]),
            dequantised(self.values[layer], self.value_scales[layer]),
        )


def quantised(x: Tensor) -> tuple[Tensor, Tensor]:
    """Returns `x` [..., head_dim] as codes of the same shape, and the scale [..., 1] of each."""
    scale = x.abs().amax(-1, keepdim=True) / 127
    scale = scale.clamp_min(torch.finfo(x.dtype).tiny)
    return (x / scale).round().clamp(-127, 127).to(torch.int8), scale


def dequantised(codes: Tensor, scale: Tensor) -> Tensor:
    """Undoes `quantised`, up to its rounding."""
    return codes.to(scale.dtype) * scale
