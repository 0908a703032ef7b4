"""Crops, reorders, copies, saves and resets a cache between calls. A refusal changes nothing."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from kvfuzz.subjects.zoo import recurrence
from kvfuzz.subjects.zoo.cache import Cache
from kvfuzz.subjects.zoo.config import DecoderConfig
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


def reorder(cache: Cache, rows: Tensor) -> Cache:
    """Makes row i the old row `rows[i]`: a permutation, a selection or a repetition."""
    cache.storage.reorder(rows)
    cache.history = recurrence.reorder(cache.history, rows)
    cache.places = None if cache.places is None else cache.places[rows]
    return cache


def copy(cache: Cache) -> Cache:
    """Returns an independent cache that holds the same."""
    places = None if cache.places is None else cache.places.clone()
    return Cache(cache.length, cache.storage.copy(), places, recurrence.copy(cache.history))


def save(cache: Cache) -> dict[str, Any]:
    """Returns what `load` needs, in plain containers of tensors of their own."""
    return {
        "length": cache.length,
        "places": None if cache.places is None else cache.places.clone(),
        "history": [(state.recent, state.hidden) for state in recurrence.copy(cache.history)],
        "storage": cache.storage.save(cache.length),
    }


def load(config: DecoderConfig, state: dict[str, Any]) -> Cache:
    """Returns the cache whose `save` returned `state`."""
    storage = KINDS[config.cache].load(config, state["storage"])
    history = [State(*tensors) for tensors in state["history"]]
    return Cache(state["length"], storage, state["places"], history)


def reset(cache: Cache) -> Cache:
    """Empties the same cache for another sequence in each row."""
    cache.storage.reset()
    cache.history = recurrence.reset(cache.history)
    cache.length, cache.places = 0, None
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
