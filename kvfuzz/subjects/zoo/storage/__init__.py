"""How the cached path stores keys and values: one kind a module.

Slots are numbered from 0 in every row, in the order in which they were fed, padding included. A
storage does not know how many there are: `Cache` does, and says so.
"""

from __future__ import annotations

from typing import Any, Protocol

import torch
from torch import Tensor

from kvfuzz.subjects.zoo.config import DecoderConfig
from kvfuzz.subjects.zoo.storage.concatenated import Concatenated
from kvfuzz.subjects.zoo.storage.int8 import Int8
from kvfuzz.subjects.zoo.storage.paged import Paged
from kvfuzz.subjects.zoo.storage.prefix import Prefix
from kvfuzz.subjects.zoo.storage.ring import Ring
from kvfuzz.subjects.zoo.storage.static import Static

Pair = tuple[Tensor, Tensor]
"""Keys and values [batch, kv_heads, entries, head_dim]."""


class Storage(Protocol):
    """The keys and values of all layers that store any.

    One call is `make_room`, then for each layer `write` and `read`. `places` are those of
    `kvfuzz.subjects.zoo.places`, for all slots.
    """

    @property
    def keys(self) -> list[Tensor]:
        """As they are stored, layer by layer."""

    @property
    def values(self) -> list[Tensor]:
        """As `keys`."""

    def make_room(self, start: int, count: int, places: Tensor | None, /) -> None:
        """Prepare for `count` new slots after the first `start`."""

    def write(self, layer: int, start: int, key: Tensor, value: Tensor, /) -> None:
        """Put the new key and value [batch, kv_heads, n, head_dim] into the slots from `start`."""

    def read(self, layer: int, /) -> Pair:
        """All that `layer` may attend to, and perhaps slots that hold nothing."""

    def entries(self, layer: int, places: Tensor | None, /) -> Tensor | None:
        """The position [batch, entries] of each entry that is read, but for those at the end that
        hold nothing; None if it is its number."""

    def in_order(self, layer: int, read: Pair, stop: int, /) -> Pair | None:
        """What of the entries that were `read` is that of the first `stop` slots, in order; None
        where not all of them are kept."""

    def view(self, layer: int, length: int, places: Tensor | None, /) -> Pair:
        """What `layer` holds of the `length` slots, in order, the newest last."""

    def crop(self, length: int, places: Tensor | None, /) -> None:
        """Drop all but the first `length` slots, whose `places` are given. Raises
        NotImplementedError, before anything changes, where they are not kept."""

    def reorder(self, rows: Tensor, /) -> None:
        """Row i becomes the old row `rows[i]`."""

    def copy(self) -> Storage:
        """An independent storage that holds the same."""

    def save(self, length: int, /) -> dict[str, Any]:
        """What `load` needs, in plain containers of tensors of their own."""

    def reset(self) -> None:
        """Drop all slots."""

    def unused(self, length: int, /) -> list[Tensor]:
        """Writable views of what holds nothing while there are `length` slots."""


class Kind(Protocol):
    """What makes a storage of one kind."""

    def empty(
        self, config: DecoderConfig, batch: int, dtype: torch.dtype, device: torch.device, /
    ) -> Storage:
        """One that holds nothing yet."""

    def load(self, config: DecoderConfig, state: dict[str, Any], /) -> Storage:
        """The storage that was saved as `state`."""


KINDS: dict[str, Kind] = {
    "concatenated": Concatenated,
    "static": Static,
    "ring": Ring,
    "paged": Paged,
    "int8": Int8,
    "prefix": Prefix,
}
