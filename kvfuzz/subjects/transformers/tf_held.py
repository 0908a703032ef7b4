"""A cache of the transformers library, and what has to be known beside it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from torch import Tensor


@dataclass(frozen=True, slots=True)
class Held:
    """The cache `own` (None before the model has made it) of `rows` rows, after `slots` slots were
    fed, the last `fresh` of them since the last crop. `encoded` [rows, places, width] is what the
    decoder of an encoder-decoder model attends to, None for other models and before the first
    call. `room` is how many slots a preallocated cache has, None for those that grow."""

    own: Any
    rows: int
    slots: int = 0
    fresh: int = 0
    encoded: Tensor | None = None
    begun: int = 0
    room: int | None = None


def inner(own: Any) -> Any:
    """The part of a cache of the library that self-attention reads."""
    return getattr(own, "self_attention_cache", own)


def parts(own: Any) -> list[Any]:
    """The caches that `own` is made of: two for an encoder-decoder model, else itself."""
    if hasattr(own, "self_attention_cache"):
        return [own.self_attention_cache, own.cross_attention_cache]
    return [own]


def layers_of(own: Any) -> list[Any]:
    """The layer objects of a cache that has such, in order; none for the older layouts."""
    found = getattr(inner(own), "layers", None)
    return list(found) if isinstance(found, list | tuple) else []


def pairs(own: Any) -> Iterator[tuple[Tensor, Tensor] | None]:
    """The keys and values of each layer of a cache of any layout, as they are stored; None for a
    layer that has none, or not as [rows, heads, slots, width]."""
    cache = inner(own)
    if layers_of(cache):
        stored = [(getattr(y, "keys", None), getattr(y, "values", None)) for y in cache.layers]
    elif hasattr(cache, "key_cache"):
        stored = list(zip(cache.key_cache, cache.value_cache, strict=True))
    elif isinstance(cache, tuple | list):
        stored = [tuple(layer[:2]) if isinstance(layer, tuple | list) else () for layer in cache]
    else:
        stored = []
    for pair in stored:
        match pair:
            case [Tensor() as keys, Tensor() as values] if keys.dim() == values.dim() == 4:
                yield keys, values
            case _:
                yield None


def holds_something(own: Any) -> bool:
    """Whether a layer of a cache of the library has keys, or a state."""
    return _has_state(own) or any(pair is not None and pair[0].numel() for pair in pairs(own))


def is_sized(own: Any) -> bool:
    """Whether a cache of the library has tensors, which have a number of rows even if they hold
    nothing."""
    return _has_state(own) or any(pair is not None for pair in pairs(own))


def _has_state(own: Any) -> bool:
    stored = [getattr(layer, "conv_states", None) for layer in layers_of(own)]
    states = [s.values() if isinstance(s, dict) else [s] for s in stored]
    return any(isinstance(state, Tensor) for group in states for state in group)
