"""A ring buffer for each layer with a window; layers without one are kept whole.

The token at position p of a row goes into entry p modulo the size of the ring. Padding is not
stored, so that it evicts nothing. The ring keeps SPARE entries more than the window, so that as
many tokens can be cropped from a full ring: the newest that is left still has its whole window.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Self

import torch
from torch import Tensor

from kvfuzz.subjects.zoo.config import DecoderConfig
from kvfuzz.subjects.zoo.places import NOWHERE, counted
from kvfuzz.subjects.zoo.storage.base import LayerTensors, Pair, zeros

SPARE = 2


@dataclass(frozen=True, slots=True)
class Arrivals:
    """The new text of one call: element i is column `column[i]` of row `row[i]`, and goes into
    entry `entry[i]`. `places` [batch, entries + n] are those of the ring before it, and of the new
    slots."""

    row: Tensor
    column: Tensor
    entry: Tensor
    places: Tensor


@dataclass(slots=True)
class Ring(LayerTensors):
    """One tensor [batch, kv_heads, size, head_dim] per layer with a window; [batch, kv_heads,
    length, head_dim] per layer without.

    `held` [batch, size] is the position of the token in each entry, NOWHERE for none. A call reads
    the ring as it was before, since its first tokens may need what its last ones evict, and the new
    entries after it: those are in `reading` until the next call.
    """

    windows: tuple[int | None, ...]
    keys: list[Tensor]
    values: list[Tensor]
    held: Tensor
    arrivals: Arrivals | None = None
    reading: dict[int, Pair] | None = None

    @classmethod
    def empty(
        cls, config: DecoderConfig, batch: int, dtype: torch.dtype, device: torch.device
    ) -> Self:
        windows = config.windows
        size = max((window + SPARE for window in windows if window), default=0)
        size = min(size, config.max_length)
        shapes = [
            (batch, config.kv_heads, size if window else 0, config.head_dim) for window in windows
        ]
        held = torch.full((batch, size), NOWHERE, device=device)
        return cls(windows, zeros(shapes, dtype, device), zeros(shapes, dtype, device), held)

    @classmethod
    def load(cls, config: DecoderConfig, state: dict[str, Any]) -> Self:
        return cls(config.windows, **state)

    def make_room(self, start: int, count: int, places: Tensor | None) -> None:
        self.reading = {}
        batch, size = self.held.shape
        if size == 0:
            return
        if places is None:
            new = torch.arange(start, start + count, device=self.held.device).expand(batch, count)
            total = torch.full_like(new[:, 0], start + count)
        else:
            new, total = places[:, start:], counted(places)
        stays = (new != NOWHERE) & (new >= total[:, None] - size)
        row, column = stays.nonzero(as_tuple=True)
        place = new[row, column]
        self.arrivals = Arrivals(row, column, place % size, torch.cat((self.held, new), dim=1))
        self.held = self.held.clone()
        self.held[row, place % size] = place

    def write(self, layer: int, _start: int, key: Tensor, value: Tensor) -> None:
        assert self.reading is not None
        whole = (
            torch.cat((self.keys[layer], key), dim=2),
            torch.cat((self.values[layer], value), dim=2),
        )
        self.reading[layer] = whole
        if self.windows[layer] is None:
            self.keys[layer], self.values[layer] = whole
            return
        new = self.arrivals
        assert new is not None
        self.keys[layer][new.row, :, new.entry] = key[new.row, :, new.column]
        self.values[layer][new.row, :, new.entry] = value[new.row, :, new.column]

    def read(self, layer: int) -> Pair:
        assert self.reading is not None
        return self.reading[layer]

    def entries(self, layer: int, places: Tensor | None) -> Tensor | None:
        if self.windows[layer] is None:
            return places
        assert self.arrivals is not None
        return self.arrivals.places

    def in_order(self, layer: int, read: Pair, _stop: int) -> Pair | None:
        return read if self.windows[layer] is None else None

    def view(self, layer: int, length: int, places: Tensor | None) -> Pair:
        keys, values = self.keys[layer], self.values[layer]
        if self.windows[layer] is None:
            return keys, values
        batch, size = self.held.shape
        if places is None:
            places = torch.arange(length, device=keys.device).expand(batch, length)
        text = places != NOWHERE
        entry = torch.where(text, places % size, 0)  # [batch, length]
        kept = (~text | (self.held.gather(1, entry) == places)).all(0)
        # The latest slots of which no text is lost; padding, which is not stored, shows as zeros.
        first = length - int(kept.flip(0).int().cumprod(0).sum())
        row = torch.arange(batch, device=keys.device)[:, None]
        entry, text = entry[:, first:], text[:, first:, None, None]
        shown_keys = torch.where(text, keys[row, :, entry], 0).transpose(1, 2)
        shown_values = torch.where(text, values[row, :, entry], 0).transpose(1, 2)
        return shown_keys, shown_values

    def crop(self, length: int, places: Tensor | None) -> None:
        """Raises NotImplementedError if a row would not have its whole window."""
        count = torch.full_like(self.held[:, :1], length)
        if places is not None:
            count = counted(places)[:, None]
        for window in filter(None, self.windows):
            needed = (self.held < count) & (self.held >= count - window)
            if not bool((needed.sum(1) == count[:, 0].clamp(max=window)).all()):
                raise NotImplementedError(f"the ring has evicted what a row of {length} would see")
        self.held = self.held.masked_fill(self.held >= count, NOWHERE)
        for tensors in (self.keys, self.values):
            for layer, kept in enumerate(self.windows):
                if kept is None:
                    tensors[layer] = tensors[layer][:, :, :length]

    def join(self, other: Self, length: int) -> None:
        LayerTensors.join(self, other, length)
        self.held = torch.cat((self.held, other.held))

    def reorder(self, rows: Tensor) -> None:
        self.change(lambda tensor: tensor[rows])
        self.held = self.held[rows]

    def copy(self) -> Self:
        lists = self.cloned()
        return type(self)(self.windows, lists["keys"], lists["values"], self.held.clone())

    def save(self, _length: int) -> dict[str, Any]:
        return {**self.cloned(), "held": self.held.clone()}

    def unused(self, _length: int) -> list[Tensor]:
        free = (self.held == NOWHERE).nonzero().tolist()
        return [
            tensor[row, :, entry]
            for window, *tensors in zip(self.windows, self.keys, self.values, strict=True)
            if window is not None
            for tensor in tensors
            for row, entry in free
        ]
