"""The cache of the built-in decoder."""

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
    """The state of the cached path between calls; each call changes it in place.

    `length` slots were fed. `storage` has their keys and values. `places` [batch, length] are their
    positions, None while each slot is its own position (`kvfuzz.subjects.zoo.places`). `history`
    has the states of the recurrent layer, if there is one. `branches` bool [n, n] says which of the
    n candidates of the last call each of them follows or is; None if that was no tree. `cross` has
    the keys and values of the side input of each row, if a layer reads those.
    """

    length: int
    storage: Storage
    places: Tensor | None
    history: list[State]
    branches: Tensor | None = None
    cross: tuple[Tensor, Tensor] | None = None

    @property
    def keys(self) -> list[Tensor]:
        """The keys of each layer as they are stored; [batch, kv_heads, length, head_dim] in a
        concatenated storage."""
        return self.storage.keys

    @property
    def values(self) -> list[Tensor]:
        """The values of each layer, with the shapes of `keys`."""
        return self.storage.values

    def bytes(self) -> int:
        """Returns the memory of the stored keys and values, in bytes."""
        return sum(t.numel() * t.element_size() for t in (*self.keys, *self.values))


def empty(config: DecoderConfig, batch: int, dtype: torch.dtype, device: torch.device) -> Cache:
    """Returns a cache that holds nothing yet."""
    storage = KINDS[config.cache].empty(config, batch, dtype, device)
    recurs = any(map(config.recurs, range(config.layers)))
    history = [recurrence.initial_state(config, batch, dtype, device)] if recurs else []
    return Cache(0, storage, None, history)


def expected_bytes(config: DecoderConfig, batch: int, length: int, element_size: int) -> int:
    """Returns 2 (K and V) x layers x batch x kv_heads x length x head_dim x bytes per element."""
    per_tensor = batch * config.kv_heads * length * config.head_dim * element_size
    return 2 * config.layers * per_tensor
