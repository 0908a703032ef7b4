"""Keys and values of each layer, concatenated."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

import torch
from torch import Tensor

from kvfuzz.subjects.zoo.config import DecoderConfig
from kvfuzz.subjects.zoo.storage.base import Joined, Pair, zeros


@dataclass(slots=True)
class Concatenated(Joined):
    """One tensor [batch, kv_heads, length, head_dim] per layer, replaced at each call."""

    keys: list[Tensor]
    values: list[Tensor]

    @classmethod
    def empty(
        cls, config: DecoderConfig, batch: int, dtype: torch.dtype, device: torch.device
    ) -> Self:
        shapes = [(batch, config.kv_heads, 0, config.head_dim)] * config.layers
        return cls(zeros(shapes, dtype, device), zeros(shapes, dtype, device))

    def write(self, layer: int, _start: int, key: Tensor, value: Tensor) -> None:
        self.keys[layer] = torch.cat((self.keys[layer], key), dim=2)
        self.values[layer] = torch.cat((self.values[layer], value), dim=2)

    def read(self, layer: int) -> Pair:
        return self.keys[layer], self.values[layer]
