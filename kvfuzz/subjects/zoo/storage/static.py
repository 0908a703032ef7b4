"""Keys and values of each layer in as many slots as a row can ever have, allocated at once."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Self

import torch
from torch import Tensor

from kvfuzz.subjects.zoo.config import DecoderConfig
from kvfuzz.subjects.zoo.storage.base import LayerTensors, Pair, zeros


@dataclass(slots=True)
class Static(LayerTensors):
    """One tensor [batch, kv_heads, max_length, head_dim] per layer, with no slots in a layer that
    stores nothing. All slots are read: those that hold nothing come after every query's own."""

    keys: list[Tensor]
    values: list[Tensor]

    @classmethod
    def empty(
        cls, config: DecoderConfig, batch: int, dtype: torch.dtype, device: torch.device
    ) -> Self:
        slots = [config.max_length * config.stores(layer) for layer in range(config.layers)]
        shapes = [(batch, config.kv_heads, count, config.head_dim) for count in slots]
        return cls(zeros(shapes, dtype, device), zeros(shapes, dtype, device))

    @classmethod
    def load(cls, config: DecoderConfig, state: dict[str, Any]) -> Self:
        like = state["keys"][0]
        loaded = cls.empty(config, like.shape[0], like.dtype, like.device)
        for name, tensors in (("keys", loaded.keys), ("values", loaded.values)):
            for stored, tensor in zip(state[name], tensors, strict=True):
                tensor[:, :, : stored.shape[2]] = stored
        return loaded

    def write(self, layer: int, start: int, key: Tensor, value: Tensor) -> None:
        stop = start + key.shape[2]
        self.keys[layer][:, :, start:stop] = key
        self.values[layer][:, :, start:stop] = value

    def read(self, layer: int) -> Pair:
        return self.keys[layer], self.values[layer]

    def crop(self, _length: int, _places: Tensor | None) -> None:
        """Does nothing: slots that are no longer counted will be overwritten."""

    def save(self, length: int) -> dict[str, Any]:
        return self.cloned(lambda tensor: tensor[:, :, :length])

    def reset(self) -> None:
        """Does nothing, as `crop`."""

    def unused(self, length: int) -> list[Tensor]:
        return [tensor[:, :, length:] for tensor in (*self.keys, *self.values)]
