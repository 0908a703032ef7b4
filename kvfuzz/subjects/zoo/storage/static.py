"""Keys and values of each layer in as many slots as a row can ever have, allocated at once."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from kvfuzz.subjects.zoo.config import DecoderConfig


@dataclass(slots=True)
class Static:
    """One tensor [batch, kv_heads, max_length, head_dim] per layer, with no slots in a layer that
    stores nothing. All slots are read: those that hold nothing stand behind every query."""

    keys: list[Tensor]
    values: list[Tensor]

    @classmethod
    def empty(
        cls, config: DecoderConfig, batch: int, dtype: torch.dtype, device: torch.device
    ) -> Static:
        def nothing() -> list[Tensor]:
            slots = [config.max_length * config.stores(layer) for layer in range(config.layers)]
            shapes = [(batch, config.kv_heads, count, config.head_dim) for count in slots]
            return [torch.zeros(shape, dtype=dtype, device=device) for shape in shapes]

        return cls(nothing(), nothing())

    @classmethod
    def load(cls, config: DecoderConfig, state: dict[str, Any]) -> Static:
        like = state["keys"][0]
        loaded = cls.empty(config, like.shape[0], like.dtype, like.device)
        for name, tensors in (("keys", loaded.keys), ("values", loaded.values)):
            for stored, tensor in zip(state[name], tensors, strict=True):
                tensor[:, :, : stored.shape[2]] = stored
        return loaded

    def make_room(self, _start: int, _count: int, _places: Tensor | None) -> None:
        """It is there from the beginning."""

    def write(self, layer: int, start: int, key: Tensor, value: Tensor) -> None:
        stop = start + key.shape[2]
        self.keys[layer][:, :, start:stop] = key
        self.values[layer][:, :, start:stop] = value

    def read(self, layer: int) -> tuple[Tensor, Tensor]:
        return self.keys[layer], self.values[layer]

    def entries(self, _layer: int, places: Tensor | None) -> Tensor | None:
        return places

    def in_order(
        self, _layer: int, read: tuple[Tensor, Tensor], stop: int
    ) -> tuple[Tensor, Tensor]:
        return read[0][:, :, :stop], read[1][:, :, :stop]

    def view(self, layer: int, length: int, _places: Tensor | None) -> tuple[Tensor, Tensor]:
        return self.keys[layer][:, :, :length], self.values[layer][:, :, :length]

    def crop(self, _length: int, _places: Tensor | None) -> None:
        """What is no longer counted will be overwritten."""

    def reorder(self, rows: Tensor) -> None:
        self.keys = [keys[rows] for keys in self.keys]
        self.values = [values[rows] for values in self.values]

    def copy(self) -> Static:
        return Static([k.clone() for k in self.keys], [v.clone() for v in self.values])

    def save(self, length: int) -> dict[str, Any]:
        return {
            "keys": [keys[:, :, :length].clone() for keys in self.keys],
            "values": [values[:, :, :length].clone() for values in self.values],
        }

    def reset(self) -> None:
        """What is no longer counted will be overwritten."""

    def unused(self, length: int) -> list[Tensor]:
        return [tensor[:, :, length:] for tensor in (*self.keys, *self.values)]
