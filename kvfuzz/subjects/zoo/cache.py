"""The cache of the registered decoder."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from kvfuzz.subjects.zoo import recurrence
from kvfuzz.subjects.zoo.config import DecoderConfig
from kvfuzz.subjects.zoo.recurrence import State
from kvfuzz.subjects.zoo.storage import KINDS
from kvfuzz.subjects.zoo.storage.base import Storage


@dataclass(slots=True)
class Cache:
    """`length` slots seen; their keys and values in `storage`; their `places` [batch, length], None
    while each slot is its own position (`kvfuzz.subjects.zoo.places`); and the `history` of the
    recurrent layer, if there is one. Changed in place by each call."""

    length: int
    storage: Storage
    places: Tensor | None
    history: list[State]

    @property
    def keys(self) -> list[Tensor]:
        """The keys of each layer as they are stored: [batch, kv_heads, length, head_dim] where they
        are concatenated."""
        return self.storage.keys

    @property
    def values(self) -> list[Tensor]:
        """The values of each layer, as `keys`."""
        return self.storage.values

    def bytes(self) -> int:
        """The memory that the stored keys and values take."""
        return sum(t.numel() * t.element_size() for t in (*self.keys, *self.values))


def empty(config: DecoderConfig, batch: int, dtype: torch.dtype, device: torch.device) -> Cache:
    """A cache that holds nothing yet."""
    storage = KINDS[config.cache].empty(config, batch, dtype, device)
    recurs = any(map(config.recurs, range(config.layers)))
    history = [recurrence.begun(config, batch, dtype, device)] if recurs else []
    return Cache(0, storage, None, history)


def expected_bytes(config: DecoderConfig, batch: int, length: int, element_size: int) -> int:
    """2 (K and V) x layers x batch x kv_heads x length x head_dim x bytes per element."""
    per_tensor = batch * config.kv_heads * length * config.head_dim * element_size
    return 2 * config.layers * per_tensor
