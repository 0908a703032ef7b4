"""Keys and values in blocks of a pool; each row has a table of its blocks, in order."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Self

import torch
from torch import Tensor

from kvfuzz.subjects.zoo.config import DecoderConfig
from kvfuzz.subjects.zoo.storage.base import Pair, Storage, zeros

BLOCK = 4
"""Slots in a block."""


@dataclass(slots=True)
class Paged(Storage):
    """One pool [blocks, kv_heads, BLOCK, head_dim] per layer, with no heads in a layer that stores
    nothing. Block numbers are the same in all layers: `tables` has those of each row, `free` those
    that no row holds. The whole last block is read: its free slots come after every query's own."""

    keys: list[Tensor]
    values: list[Tensor]
    tables: list[list[int]]
    free: list[int]

    @classmethod
    def empty(
        cls, config: DecoderConfig, batch: int, dtype: torch.dtype, device: torch.device
    ) -> Self:
        heads = [config.kv_heads * config.stores(layer) for layer in range(config.layers)]
        shapes = [(batch, count, BLOCK, config.head_dim) for count in heads]
        keys, values = zeros(shapes, dtype, device), zeros(shapes, dtype, device)
        return cls(keys, values, [[] for _ in range(batch)], list(range(batch)))

    @classmethod
    def load(cls, _config: DecoderConfig, state: dict[str, Any]) -> Self:
        return cls(**state)

    def make_room(self, start: int, count: int, _places: Tensor | None) -> None:
        for table in self.tables:
            while len(table) * BLOCK < start + count:
                table.append(self.allocate())

    def allocate(self) -> int:
        """Takes a free block; doubles the pool if there is none."""
        if not self.free:
            blocks = self.keys[0].shape[0]
            self.free = list(range(blocks, 2 * blocks))
            for tensors in (self.keys, self.values):
                tensors[:] = [torch.cat((pool, torch.zeros_like(pool))) for pool in tensors]
        return self.free.pop(0)

    def write(self, layer: int, start: int, key: Tensor, value: Tensor) -> None:
        slots = torch.arange(start, start + key.shape[2], device=key.device)
        block = self._blocks()[:, slots // BLOCK]  # [batch, n]
        self.keys[layer][block, :, slots % BLOCK] = key.transpose(1, 2)
        self.values[layer][block, :, slots % BLOCK] = value.transpose(1, 2)

    def read(self, layer: int) -> Pair:
        blocks = self._blocks()
        # [batch, blocks, kv_heads, BLOCK, head_dim] -> [batch, kv_heads, slots, head_dim]
        keys = self.keys[layer][blocks].transpose(1, 2).flatten(2, 3)
        return keys, self.values[layer][blocks].transpose(1, 2).flatten(2, 3)

    def crop(self, length: int, _places: Tensor | None) -> None:
        for table in self.tables:
            while (len(table) - 1) * BLOCK >= length:
                self.free.append(table.pop())

    @property
    def batch(self) -> int:
        return len(self.tables)

    def join(self, other: Self, length: int) -> None:
        """Puts the pool of `other` behind the own one."""
        blocks = self.keys[0].shape[0]
        for own, theirs in ((self.keys, other.keys), (self.values, other.values)):
            own[:] = [torch.cat(pair) for pair in zip(own, theirs, strict=True)]
        self.tables += [[blocks + block for block in table] for table in other.tables]
        self.free += [blocks + block for block in other.free]
        self.make_room(0, length, None)

    def reorder(self, rows: Tensor) -> None:
        old, self.tables = self.tables, []
        chosen = rows.tolist()
        for row in set(range(len(old))) - set(chosen):
            self.free += old[row]
        for number, row in enumerate(chosen):
            again = row in chosen[:number]
            self.tables.append([self._copied(b) for b in old[row]] if again else old[row])

    def copy(self) -> Self:
        return type(self)(
            [k.clone() for k in self.keys],
            [v.clone() for v in self.values],
            [list(table) for table in self.tables],
            list(self.free),
        )

    def save(self, _length: int) -> dict[str, Any]:
        copied = self.copy()
        names = ("keys", "values", "tables", "free")
        return {name: getattr(copied, name) for name in names}

    def unused(self, length: int) -> list[Tensor]:
        pools = (*self.keys, *self.values)
        used = length % BLOCK
        ends = [table[-1] for table in self.tables if used]
        return [pool[block] for pool in pools for block in self.free] + [
            pool[block, :, used:] for pool in pools for block in ends
        ]

    def _blocks(self) -> Tensor:
        """Returns the tables of all rows [batch, blocks]."""
        return torch.tensor(self.tables, dtype=torch.int64, device=self.keys[0].device)

    def _copied(self, block: int) -> int:
        """Returns a new block with the contents of `block`."""
        new = self.allocate()
        for pool in (*self.keys, *self.values):
            pool[new] = pool[block]
        return new
