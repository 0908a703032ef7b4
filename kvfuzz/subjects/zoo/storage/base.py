"""The protocol of every storage of keys and values, and the code that several share."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from typing import Any, Self

import torch
import torch.nn.functional as F
from torch import Tensor

from kvfuzz.subjects.zoo.config import DecoderConfig

Pair = tuple[Tensor, Tensor]
"""Keys and values [batch, kv_heads, entries, head_dim]."""


class Storage(ABC):
    """The keys and values of all layers that store any.

    One call is `make_room`, then for each layer `write` and `read`. Slots are numbered from 0 in
    every row, in the order in which they were fed, padding included. A storage does not know how
    many there are: `Cache` does, and passes it. `places` are those of `kvfuzz.subjects.zoo.places`,
    for all slots.
    """

    __slots__ = ()

    keys: list[Tensor]
    """The keys of each layer, as they are stored."""

    values: list[Tensor]
    """The values of each layer, as they are stored."""

    @classmethod
    @abstractmethod
    def empty(
        cls, config: DecoderConfig, batch: int, dtype: torch.dtype, device: torch.device
    ) -> Self:
        """Returns a storage that holds nothing yet."""

    @classmethod
    @abstractmethod
    def load(cls, config: DecoderConfig, state: dict[str, Any], /) -> Self:
        """Returns the storage whose `save` returned `state`."""

    def make_room(self, start: int, count: int, places: Tensor | None, /) -> None:  # noqa: B027
        """Prepares for `count` new slots after the first `start`."""

    @abstractmethod
    def write(self, layer: int, start: int, key: Tensor, value: Tensor, /) -> None:
        """Puts the new key and value [batch, kv_heads, n, head_dim] into the slots from `start`."""

    @abstractmethod
    def read(self, layer: int, /) -> Pair:
        """Returns all that `layer` may attend to, and perhaps slots that hold nothing."""

    def entries(self, _layer: int, places: Tensor | None, /) -> Tensor | None:
        """Returns the position [batch, entries] of each entry that is read, except those at the end
        that hold nothing; None if it is its number."""
        return places

    def in_order(self, _layer: int, read: Pair, stop: int, /) -> Pair | None:
        """Returns the part of the entries `read` that belongs to the first `stop` slots, in order;
        None where not all of them are kept."""
        return read[0][:, :, :stop], read[1][:, :, :stop]

    def view(self, layer: int, length: int, _places: Tensor | None, /) -> Pair:
        """Returns what `layer` holds of the `length` slots, in order, the newest last."""
        keys, values = self.read(layer)
        return keys[:, :, :length], values[:, :, :length]

    @abstractmethod
    def crop(self, length: int, places: Tensor | None, /) -> None:
        """Drops all but the first `length` slots, whose `places` are given. Raises
        NotImplementedError, before anything changes, where they are not kept."""

    @property
    def batch(self) -> int:
        """The number of rows."""
        return self.keys[0].shape[0]

    @abstractmethod
    def join(self, other: Self, length: int, /) -> None:
        """Adds the rows of `other`, which is not used again, after the own ones. The longer of both
        has `length` slots, and the rows of the shorter one get slots that hold nothing."""

    @abstractmethod
    def reorder(self, rows: Tensor, /) -> None:
        """Makes row i the old row `rows[i]`."""

    @abstractmethod
    def copy(self) -> Self:
        """Returns an independent storage that holds the same."""

    @abstractmethod
    def save(self, length: int, /) -> dict[str, Any]:
        """Returns what `load` needs, in plain containers of tensors of their own."""

    def reset(self) -> None:
        """Drops all slots."""
        self.crop(0, None)

    def unused(self, _length: int, /) -> list[Tensor]:
        """Returns writable views of the slots that hold nothing while there are `length`."""
        return []


class LayerTensors(Storage):
    """A storage with a tensor per layer in each of its lists, whose first axis is the batch."""

    __slots__ = ()

    LISTS: tuple[str, ...] = ("keys", "values")

    def change(self, change: Callable[[Tensor], Tensor]) -> None:
        """Replaces every tensor of the lists. The lists are replaced too: a fault may have given
        them to another storage as well, which must not change."""
        for name in self.LISTS:
            setattr(self, name, [change(tensor) for tensor in getattr(self, name)])

    def cloned(self, change: Callable[[Tensor], Tensor] = lambda x: x) -> dict[str, list[Tensor]]:
        """Returns the lists by name, in tensors of their own, after `change`."""
        return {name: [change(t).clone() for t in getattr(self, name)] for name in self.LISTS}

    def join(self, other: Self, _length: int) -> None:
        for name in self.LISTS:
            pairs = zip(getattr(self, name), getattr(other, name), strict=True)
            setattr(self, name, [stacked(one, two) for one, two in pairs])

    def reorder(self, rows: Tensor) -> None:
        self.change(lambda tensor: tensor[rows])

    def copy(self) -> Self:
        return type(self)(**self.cloned())

    def save(self, _length: int) -> dict[str, Any]:
        return self.cloned()


class Joined(LayerTensors):
    """A storage that joins new entries to the old ones, so that every entry is a slot that was
    fed."""

    __slots__ = ()

    @classmethod
    def load(cls, _config: DecoderConfig, state: dict[str, Any]) -> Self:
        return cls(**state)

    def in_order(self, _layer: int, read: Pair, _stop: int) -> Pair:
        # Not cut to `_stop`: a fault may have stored too many, and that shows here.
        return read

    def view(self, layer: int, _length: int, _places: Tensor | None) -> Pair:
        return self.read(layer)

    def crop(self, length: int, _places: Tensor | None) -> None:
        self.change(lambda tensor: tensor[:, :, :length])


def stacked(one: Tensor, other: Tensor) -> Tensor:
    """Returns the rows of both [batch, heads, slots, features], with zeros after the slots of the
    shorter."""
    slots = max(one.shape[2], other.shape[2])
    return torch.cat([F.pad(x, (0, 0, 0, slots - x.shape[2])) for x in (one, other)])


def zeros(
    shapes: Iterable[tuple[int, ...]], dtype: torch.dtype, device: torch.device
) -> list[Tensor]:
    """Returns a tensor of zeros for each of `shapes`."""
    return [torch.zeros(shape, dtype=dtype, device=device) for shape in shapes]
