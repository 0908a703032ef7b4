"""Crops, reorders, copies, saves and resets a cache between calls. A refusal changes nothing."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor

from kvfuzz.subjects.zoo import recurrence
from kvfuzz.subjects.zoo.cache import Cache
from kvfuzz.subjects.zoo.config import DecoderConfig
from kvfuzz.subjects.zoo.places import NOWHERE, filled_up, table
from kvfuzz.subjects.zoo.recurrence import State
from kvfuzz.subjects.zoo.storage import KINDS

View = list[tuple[Tensor, Tensor] | None]


def crop(cache: Cache, count: int) -> Cache:
    """Drops the last `count` slots of every row. Raises NotImplementedError where a ring has
    evicted, or a recurrent layer forgotten, what the rest needs."""
    if count >= cache.length:
        return reset(cache)
    length = cache.length - count
    places = None if cache.places is None else cache.places[:, :length]
    if not recurrence.croppable(cache.history, count):
        raise NotImplementedError(f"a recurrent layer cannot be rolled back by {count} slots")
    cache.storage.crop(length, places)  # which may refuse, too
    cache.history = recurrence.crop(cache.history, count)
    cache.length, cache.places = length, places
    return cache


def rollback(cache: Cache, counts: Tensor) -> Cache:
    """Drops the last `counts[r]` tokens of row r. Their slots stay, and hold nothing, while another
    row still has a token as late. Raises NotImplementedError for a recurrent layer, and where a
    ring has evicted what the rest needs."""
    if cache.history:
        raise NotImplementedError("a recurrent layer cannot be rolled back row by row")
    places = rolled_back(table(cache.places, len(counts), cache.length, counts.device), counts)
    return keep_places(cache, places)


def accept(cache: Cache, candidates: Tensor) -> Cache:
    """Keeps of the candidates of the last call, in row r, number `candidates[r]` and those that it
    follows; none for -1. The slots of the others hold nothing."""
    assert cache.branches is not None
    assert cache.places is not None
    kept = kept_of(cache.branches, candidates)
    count = len(cache.branches)
    new = cache.places[:, -count:].masked_fill(~kept, NOWHERE)
    cache.branches = None
    return keep_places(cache, torch.cat((cache.places[:, :-count], new), dim=1))


def kept_of(branches: Tensor, candidates: Tensor) -> Tensor:
    """Returns which of n candidates each row keeps, bool [batch, n], by their `branches` [n, n] and
    the last one that it keeps [batch]."""
    return branches[candidates] & (candidates >= 0)[:, None]


def keep_places(cache: Cache, places: Tensor) -> Cache:
    """Gives the slots of `cache` the `places` [batch, slots], and drops those at the end that hold
    nothing in any row."""
    held = (places != NOWHERE).any(0).nonzero()
    if not len(held):
        return reset(cache)
    length = 1 + int(held[-1])
    places = places[:, :length]
    cache.storage.crop(length, places)  # which may refuse
    cache.length, cache.places = length, places
    return cache


def rolled_back(places: Tensor, counts: Tensor) -> Tensor:
    """Returns the `places` [batch, slots] after the last `counts` [batch] of the text of each row
    are dropped: NOWHERE for these."""
    text = places != NOWHERE
    left = text.sum(1) - counts
    return places.masked_fill(text.cumsum(1) > left[:, None], NOWHERE)


def join(cache: Cache, other: Cache, device: torch.device) -> Cache:
    """Adds the rows of `other`, which is not used again, after those of `cache`. Behind the text of
    shorter rows are slots that hold nothing."""
    length = max(cache.length, other.length)
    places = joined_places(cache, other, length, device)
    cache.storage.join(other.storage, length)
    cache.history = recurrence.join(cache.history, other.history)
    cache.length, cache.places = length, places
    if cache.cross is not None and other.cross is not None:
        cache.cross = both(torch.cat, zip(cache.cross, other.cross, strict=True))
    return cache


def both(change: Callable[[Any], Tensor], pair: Iterable[Any]) -> tuple[Tensor, Tensor]:
    """Returns what `change` makes of the keys and of the values of side inputs."""
    keys, values = map(change, pair)
    return keys, values


def joined_places(cache: Cache, other: Cache, length: int, device: torch.device) -> Tensor | None:
    """Returns the places [rows of both, length] of the slots of two caches, one below the other."""
    if cache.places is None and other.places is None and cache.length == other.length:
        return None
    tables = [
        filled_up(table(one.places, one.storage.batch, one.length, device), length)
        for one in (cache, other)
    ]
    return torch.cat(tables)


def reorder(cache: Cache, rows: Tensor) -> Cache:
    """Makes row i the old row `rows[i]`: a permutation, a selection or a repetition."""
    cache.storage.reorder(rows)
    cache.history = recurrence.reorder(cache.history, rows)
    cache.places = None if cache.places is None else cache.places[rows]
    cache.cross = None if cache.cross is None else both(lambda one: one[rows], cache.cross)
    return cache


def copy(cache: Cache) -> Cache:
    """Returns an independent cache that holds the same."""
    places = None if cache.places is None else cache.places.clone()
    history = recurrence.copy(cache.history)
    cross = None if cache.cross is None else both(torch.clone, cache.cross)
    return Cache(cache.length, cache.storage.copy(), places, history, cross=cross)


def save(cache: Cache) -> dict[str, Any]:
    """Returns what `load` needs, in plain containers of tensors of their own."""
    return {
        "length": cache.length,
        "places": None if cache.places is None else cache.places.clone(),
        "history": [(state.recent, state.hidden) for state in recurrence.copy(cache.history)],
        "storage": cache.storage.save(cache.length),
        "cross": None if cache.cross is None else both(torch.clone, cache.cross),
    }


def load(config: DecoderConfig, state: dict[str, Any]) -> Cache:
    """Returns the cache whose `save` returned `state`."""
    storage = KINDS[config.cache].load(config, state["storage"])
    history = [State(*tensors) for tensors in state["history"]]
    return Cache(state["length"], storage, state["places"], history, cross=state["cross"])


def reset(cache: Cache) -> Cache:
    """Empties the same cache for another sequence in each row."""
    cache.storage.reset()
    cache.history = recurrence.reset(cache.history)
    cache.length, cache.places, cache.cross = 0, None, None
    return cache


def view(config: DecoderConfig, cache: Cache) -> View:
    """Returns the keys and values [batch, kv_heads, held, head_dim] of each layer, the newest slot
    last; None for a layer that stores none."""
    return [
        cache.storage.view(layer, cache.length, cache.places) if config.stores(layer) else None
        for layer in range(config.layers)
    ]


def unused(cache: Cache) -> list[Tensor]:
    """Returns writable views of all slots that hold nothing now."""
    return [slots for slots in cache.storage.unused(cache.length) if slots.numel()]
