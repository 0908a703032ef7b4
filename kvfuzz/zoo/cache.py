"""The cache of the registered decoder: keys and values of each layer, concatenated."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from kvfuzz.zoo.config import DecoderConfig


@dataclass(slots=True)
class Cache:
    """`length` tokens seen; `keys` and `values` hold one tensor [batch, kv_heads, length,
    head_dim] per layer. Changed in place by each call."""

    length: int
    keys: list[Tensor]
    values: list[Tensor]

    def bytes(self) -> int:
        """The memory that the stored keys and values take."""
        return sum(t.numel() * t.element_size() for t in (*self.keys, *self.values))


def empty(config: DecoderConfig, batch: int, dtype: torch.dtype, device: torch.device) -> Cache:
    """A cache that holds nothing yet."""
    shape = (batch, config.kv_heads, 0, config.head_dim)

    def nothing() -> list[Tensor]:
        return [torch.empty(shape, dtype=dtype, device=device) for _ in range(config.layers)]

    return Cache(0, nothing(), nothing())


def expected_bytes(config: DecoderConfig, batch: int, length: int, element_size: int) -> int:
    """2 (K and V) x layers x batch x kv_heads x length x head_dim x bytes per element."""
    per_tensor = batch * config.kv_heads * length * config.head_dim * element_size
    return 2 * config.layers * per_tensor
