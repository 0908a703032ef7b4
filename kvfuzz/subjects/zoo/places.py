"""The position of each slot of a cache in its own row.

One column of one call takes one slot in every row. While every slot holds text, its position is its
number, and nothing needs to be kept. Once a call was given a mask or positions, a table [batch,
slots] has the position of each slot, and NOWHERE for padding.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

# Later than every query: no query sees an entry at this position.
NOWHERE = 1 << 40


class Places(NamedTuple):
    """The positions of the `queries`, [n] or [batch, n], and of the `entries` of the cache [batch,
    m]."""

    queries: Tensor
    entries: Tensor


def placed(
    before: Tensor | None, length: int, tokens: Tensor, mask: Tensor | None, given: Tensor | None
) -> Tensor:
    """Returns the table [batch, length + n] after `tokens` [batch, n] join the `length` slots
    `before`.

    `mask` bool [batch, length + n] says which slots hold text; its earlier part is known already.
    Positions that are not `given` [batch, n] count the text of the row.
    """
    batch, count = tokens.shape
    if mask is not None and mask.shape != (batch, length + count):
        raise ValueError(f"mask should be {[batch, length + count]}, got {list(mask.shape)}")
    if given is not None and given.shape != tokens.shape:
        raise ValueError(f"positions should be {[batch, count]}, got {list(given.shape)}")
    before = table(before, batch, length, tokens.device)
    new = torch.ones_like(tokens, dtype=torch.bool) if mask is None else mask[:, length:].bool()
    if given is None:
        given = counted(before)[:, None] + new.cumsum(1) - 1
    return torch.cat((before, given.masked_fill(~new, NOWHERE)), dim=1)


def table(places: Tensor | None, batch: int, length: int, device: torch.device) -> Tensor:
    """Returns `places`; for None, the table [batch, length] in which each slot is its own
    position."""
    return torch.arange(length, device=device).expand(batch, length) if places is None else places


def counted(places: Tensor) -> Tensor:
    """Returns how many slots of each row hold text [batch]."""
    return (places != NOWHERE).sum(1)


def filled_up(places: Tensor, count: int) -> Tensor:
    """Extends `places` [batch, slots] to `count` entries, the last of which hold nothing."""
    batch, slots = places.shape
    if slots == count:
        return places
    return torch.cat((places, places.new_full((batch, count - slots), NOWHERE)), dim=1)


def distances(index: Tensor, slots: Tensor) -> Tensor:
    """Returns how far each position of `index` is after each of `slots`: [n, m], or [batch, 1, n,
    m] where either differs from row to row."""
    distance = index.unsqueeze(-1) - slots.unsqueeze(-2)
    return distance if distance.dim() == 2 else distance[:, None]
