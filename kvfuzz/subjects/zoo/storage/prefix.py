"""Rows and forks share what they have in common, until one of them writes: copy on write."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from kvfuzz.subjects.zoo.config import DecoderConfig


@dataclass(slots=True)
class Shared:
    """The keys and values [2, kv_heads, max_length, head_dim] of one row in each layer that stores
    any, and how many rows, of however many caches, own them."""

    layers: dict[int, Tensor]
    owners: int = 1


@dataclass(slots=True)
class Prefix:
    """Each row's storage, which other rows and other caches may own too. None that more than one
    owns is written to: its writer takes a copy first."""

    rows: list[Shared]

    @property
    def keys(self) -> list[Tensor]:
        """What each layer has stored, in copies: [batch, kv_heads, max_length, head_dim]."""
        return [self.read(layer)[0] for layer in self.rows[0].layers]

    @property
    def values(self) -> list[Tensor]:
        """As `keys`."""
        return [self.read(layer)[1] for layer in self.rows[0].layers]

    @classmethod
    def empty(
        cls, config: DecoderConfig, batch: int, dtype: torch.dtype, device: torch.device
    ) -> Prefix:
        shape = (2, config.kv_heads, config.max_length, config.head_dim)
        layers = list(filter(config.stores, range(config.layers)))

        def nothing() -> dict[int, Tensor]:
            return {layer: torch.zeros(shape, dtype=dtype, device=device) for layer in layers}

        return cls([Shared(nothing()) for _ in range(batch)])

    @classmethod
    def load(cls, config: DecoderConfig, state: dict[str, Any]) -> Prefix:
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
        """`row`, or a copy if others own it too."""
        if row.owners == 1:
            return row
        row.owners -= 1
        return Shared({layer: tensor.clone() for layer, tensor in row.layers.items()})

    def write(self, layer: int, start: int, key: Tensor, value: Tensor) -> None:
        stop = start + key.shape[2]
        for number, row in enumerate(self.rows):
            row.layers[layer][0, :, start:stop] = key[number]
            row.layers[layer][1, :, start:stop] = value[number]

    def read(self, layer: int) -> tuple[Tensor, Tensor]:
        keys, values = torch.stack([row.layers[layer] for row in self.rows], dim=1)
        return keys, values

    def entries(self, _layer: int, places: Tensor | None) -> Tensor | None:
        return places

    def in_order(
        self, _layer: int, read: tuple[Tensor, Tensor], stop: int
    ) -> tuple[Tensor, Tensor]:
        return read[0][:, :, :stop], read[1][:, :, :stop]

    def view(self, layer: int, length: int, _places: Tensor | None) -> tuple[Tensor, Tensor]:
        return self.in_order(layer, self.read(layer), length)

    def crop(self, _length: int, _places: Tensor | None) -> None:
        """What is no longer counted will be overwritten, if no one else owns it."""

    def reorder(self, rows: Tensor) -> None:
        chosen = [self.rows[row] for row in rows.tolist()]
        for row in self.rows:
            row.owners -= 1
        for row in chosen:
            row.owners += 1
        self.rows = chosen

    def copy(self) -> Prefix:
        for row in self.rows:
            row.owners += 1
        return Prefix(list(self.rows))

    def save(self, length: int) -> dict[str, Any]:
        return {
            "rows": [
                {layer: tensor[:, :, :length].clone() for layer, tensor in row.layers.items()}
                for row in self.rows
            ]
        }

    def reset(self) -> None:
        """What is no longer counted will be overwritten, if no one else owns it."""

    def unused(self, length: int) -> list[Tensor]:
        """Of rows that others own too nothing is: they may hold more there."""
        return [
            tensor[:, :, length:]
            for row in self.rows
            if row.owners == 1
            for tensor in row.layers.values()
        ]
