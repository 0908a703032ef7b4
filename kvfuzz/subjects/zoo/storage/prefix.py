"""Rows and forks share their storage until one of them writes: copy on write."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Self

import torch
from torch import Tensor

from kvfuzz.subjects.zoo.config import DecoderConfig
from kvfuzz.subjects.zoo.storage.base import Pair, Storage, zeros


@dataclass(slots=True)
class Shared:
    """The keys and values [2, kv_heads, max_length, head_dim] of one row in each layer that stores
    any, and the number of rows, in any number of caches, that own them."""

    layers: dict[int, Tensor]
    owners: int = 1


@dataclass(slots=True)
class Prefix(Storage):
    """Each row's storage, which other rows and other caches may own too. A writer first takes a
    copy of a storage that has another owner."""

    rows: list[Shared]

    @property
    def keys(self) -> list[Tensor]:  # type: ignore[override]  # read-only
        """Copies of the keys of each layer [batch, kv_heads, max_length, head_dim]."""
        return [self.read(layer)[0] for layer in self.rows[0].layers]

    @property
    def values(self) -> list[Tensor]:  # type: ignore[override]  # read-only
        """As `keys`."""
        return [self.read(layer)[1] for layer in self.rows[0].layers]

    @classmethod
    def empty(
        cls, config: DecoderConfig, batch: int, dtype: torch.dtype, device: torch.device
    ) -> Self:
        shape = (2, config.kv_heads, config.max_length, config.head_dim)
        layers = list(filter(config.stores, range(config.layers)))
        tensors = (zeros([shape] * len(layers), dtype, device) for _ in range(batch))
        return cls([Shared(dict(zip(layers, each, strict=True))) for each in tensors])

    @classmethod
    def load(cls, config: DecoderConfig, state: dict[str, Any]) -> Self:
        rows = []
        for stored in state["rows"]:
            layers = {}
            for layer, tensor in stored.items():
                free = config.max_length - tensor.shape[2]
                layers[layer] = torch.nn.functional.pad(tensor, (0, 0, 0, free))
            rows.append(Shared(layers))
        return cls(rows)

    def make_room(self, _start: int, _count: int, _places: Tensor | None) -> None:
        self.rows = [self.owned(row) for row in self.rows]

    def owned(self, row: Shared) -> Shared:
        """Returns `row`, or a copy if it has other owners."""
        if row.owners == 1:
            return row
        row.owners -= 1
        return Shared({layer: tensor.clone() for layer, tensor in row.layers.items()})

    def write(self, layer: int, start: int, key: Tensor, value: Tensor) -> None:
        stop = start + key.shape[2]
        for number, row in enumerate(self.rows):
            row.layers[layer][0, :, start:stop] = key[number]
            row.layers[layer][1, :, start:stop] = value[number]

    def read(self, layer: int) -> Pair:
        keys, values = torch.stack([row.layers[layer] for row in self.rows], dim=1)
        return keys, values

    def crop(self, _length: int, _places: Tensor | None) -> None:
        """Does nothing: slots that are no longer counted will be overwritten, or copied first."""

    @property
    def batch(self) -> int:
        return len(self.rows)

    def join(self, other: Self, _length: int) -> None:
        self.rows = [*self.rows, *other.rows]

    def reorder(self, rows: Tensor) -> None:
        chosen = [self.rows[row] for row in rows.tolist()]
        for row in self.rows:
            row.owners -= 1
        for row in chosen:
            row.owners += 1
        self.rows = chosen

    def copy(self) -> Self:
        for row in self.rows:
            row.owners += 1
        return type(self)(list(self.rows))

    def save(self, length: int) -> dict[str, Any]:
        return {
            "rows": [
                {layer: tensor[:, :, :length].clone() for layer, tensor in row.layers.items()}
                for row in self.rows
            ]
        }

    def reset(self) -> None:
        """Does nothing, as `crop`."""

    def unused(self, length: int) -> list[Tensor]:
        """Leaves out rows with other owners, which may hold more there."""
        return [
            tensor[:, :, length:]
            for row in self.rows
            if row.owners == 1
            for tensor in row.layers.values()
        ]
