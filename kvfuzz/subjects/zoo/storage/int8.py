"""Keys and values of each layer, concatenated in int8, with a scale for each row, head and slot.

So what one token rounds to does not depend on another.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from kvfuzz.subjects.zoo.config import DecoderConfig


@dataclass(slots=True)
class Int8:
    """Per layer the codes [batch, kv_heads, length, head_dim], and scales [batch, kv_heads, length,
    1] in the dtype that the decoder computes in."""

    keys: list[Tensor]
    values: list[Tensor]
    key_scales: list[Tensor]
    value_scales: list[Tensor]

    @classmethod
    def empty(
        cls, config: DecoderConfig, batch: int, dtype: torch.dtype, device: torch.device
    ) -> Int8:
        def nothing(features: int, dtype: torch.dtype) -> list[Tensor]:
            shape = (batch, config.kv_heads, 0, features)
            return [torch.empty(shape, dtype=dtype, device=device) for _ in range(config.layers)]

        codes, scales = (config.head_dim, torch.int8), (1, dtype)
        return cls(nothing(*codes), nothing(*codes), nothing(*scales), nothing(*scales))

    @classmethod
    def load(cls, _config: DecoderConfig, state: dict[str, Any]) -> Int8:
        return cls(**state)

    def make_room(self, _start: int, _count: int, _places: Tensor | None) -> None:
        """A concatenation needs none."""

    def write(self, layer: int, _start: int, key: Tensor, value: Tensor) -> None:
        for new, codes, scales in (
            (key, self.keys, self.key_scales),
            (value, self.values, self.value_scales),
        ):
            code, scale = quantised(new)
            codes[layer] = torch.cat((codes[layer], code), dim=2)
            scales[layer] = torch.cat((scales[layer], scale), dim=2)

    def read(self, layer: int) -> tuple[Tensor, Tensor]:
        return (
            dequantised(self.keys[layer], self.key_scales[layer]),
            dequantised(self.values[layer], self.value_scales[layer]),
        )

    def entries(self, _layer: int, places: Tensor | None) -> Tensor | None:
        return places

    def in_order(
        self, _layer: int, read: tuple[Tensor, Tensor], _stop: int
    ) -> tuple[Tensor, Tensor]:
        return read

    def view(self, layer: int, _length: int, _places: Tensor | None) -> tuple[Tensor, Tensor]:
        return self.read(layer)

    def crop(self, length: int, _places: Tensor | None) -> None:
        for tensors in self._all():
            tensors[:] = [tensor[:, :, :length] for tensor in tensors]

    def reorder(self, rows: Tensor) -> None:
        for tensors in self._all():
            tensors[:] = [tensor[rows] for tensor in tensors]

    def copy(self) -> Int8:
        return Int8(*([tensor.clone() for tensor in tensors] for tensors in self._all()))

    def save(self, _length: int) -> dict[str, Any]:
        names = ("keys", "values", "key_scales", "value_scales")
        return {name: [t.clone() for t in getattr(self, name)] for name in names}

    def reset(self) -> None:
        self.crop(0, None)

    def unused(self, _length: int) -> list[Tensor]:
        return []

    def _all(self) -> tuple[list[Tensor], ...]:
        return self.keys, self.values, self.key_scales, self.value_scales


def quantised(x: Tensor) -> tuple[Tensor, Tensor]:
    """`x` [..., head_dim] as codes of the same shape, and the scale [..., 1] of each."""
    scale = x.abs().amax(-1, keepdim=True) / 127
    scale = scale.clamp_min(torch.finfo(x.dtype).tiny)
    return (x / scale).round().clamp(-127, 127).to(torch.int8), scale


def dequantised(codes: Tensor, scale: Tensor) -> Tensor:
    """What `quantised` kept of its argument."""
    return codes.to(scale.dtype) * scale
