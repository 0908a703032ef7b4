"""Keys and values of each layer, concatenated."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from kvfuzz.subjects.zoo.config import DecoderConfig


@dataclass(slots=True)
class Concatenated:
    """One tensor [batch, kv_heads, length, head_dim] per layer, replaced at each call."""

    keys: list[Tensor]
    values: list[Tensor]

    @classmethod
    def empty(
        cls, config: DecoderConfig, batch: int, dtype: torch.dtype, device: torch.device
    ) -> Concatenated:
        shape = (batch, config.kv_heads, 0, config.head_dim)

        def nothing() -> list[Tensor]:
            return [torch.empty(shape, dtype=dtype, device=device) for _ in range(config.layers)]

        return cls(nothing(), nothing())

    @classmethod
    def load(cls, _config: DecoderConfig, state: dict[str, Any]) -> Concatenated:
        return cls(state["keys"], state["values"])

    def make_room(self, _start: int, _count: int, _places: Tensor | None) -> None:
        """A concatenation needs none."""

    def write(self, layer: int, _start: int, key: Tensor, value: Tensor) -> None:
        self.keys[layer] = torch.cat((self.keys[layer], key), dim=2)
        self.values[layer] = torch.cat((self.values[layer], value), dim=2)

    def read(self, layer: int) -> tuple[Tensor, Tensor]:
        return self.keys[layer], self.values[layer]

    def entries(self, _layer: int, places: Tensor | None) -> Tensor | None:
        return places

    def in_order(
        self, _layer: int, read: tuple[Tensor, Tensor], _stop: int
    ) -> tuple[Tensor, Tensor]:
        return read

    def view(self, layer: int, _length: int, _places: Tensor | None) -> tuple[Tensor, Tensor]:
        return self.keys[layer], self.values[layer]

    def crop(self, length: int, _places: Tensor | None) -> None:
        self.keys = [keys[:, :, :length] for keys in self.keys]
        self.values = [values[:, :, :length] for values in self.values]

    def reorder(self, rows: Tensor) -> None:
        self.keys = [keys[rows] for keys in self.keys]
        self.values = [values[rows] for values in self.values]

    def copy(self) -> Concatenated:
        return Concatenated([k.clone() for k in self.keys], [v.clone() for v in self.values])

    def save(self, _length: int) -> dict[str, Any]:
        return {"keys": [k.clone() for k in self.keys], "values": [v.clone() for v in self.values]}

    def reset(self) -> None:
        self.crop(0, None)

    def unused(self, _length: int) -> list[Tensor]:
        return []
