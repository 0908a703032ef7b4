"""The state of a transformers cache, and what the library can do to it.

`crop`, `reorder`, `reset` and `save` use the library's own methods. They raise NotImplementedError
before they change anything: where the installed release has no such method for this cache, or says
that it cannot be used now.
"""

from __future__ import annotations

import pickle
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from kvfuzz.subjects.transformers.private import is_quantised, reorder_of

View = list[tuple[Tensor, Tensor] | None]


@dataclass(frozen=True, slots=True)
class CacheState:
    """A cache of the library, and what it does not know about itself.

    `own` is the cache, None before the model has made it; `rows` its batch. `slots` were fed so
    far, the last `fresh` of them since the last crop. `encoded` [rows, places, width] is the
    encoder output that the decoder attends to, None for decoder-only models and before the first
    call; the first `begun` slots chose it. `room` is the number of slots of a preallocated cache,
    None for one that grows.
    """

    own: Any
    rows: int
    slots: int = 0
    fresh: int = 0
    encoded: Tensor | None = None
    begun: int = 0
    room: int | None = None


# Every layout of the library: objects with layers (4.54 on), lists of keys and of values (4.36 on),
# and tuples (before).


def self_attention_of(own: Any) -> Any:
    """The cache that self-attention reads: a part of `own` for an encoder-decoder model."""
    return getattr(own, "self_attention_cache", own)


def layers_of(own: Any) -> list[Any]:
    """The layer objects of a cache, in order; none for the older layouts."""
    found = getattr(self_attention_of(own), "layers", None)
    return list(found) if isinstance(found, list | tuple) else []


def key_value_pairs(own: Any) -> Iterator[tuple[Tensor, Tensor] | None]:
    """Yields the stored keys and values of each layer of a cache of any layout; None for a layer
    without them, or with another shape than [rows, heads, slots, width]."""
    cache = self_attention_of(own)
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
    """Whether a layer of the cache `own` holds keys, or a state."""
    pairs = key_value_pairs(own)
    return _has_state(own) or any(pair is not None and pair[0].numel() for pair in pairs)


def _has_batch(own: Any) -> bool:
    """Whether the cache `own` has tensors, which have a number of rows even if they are empty."""
    return _has_state(own) or any(pair is not None for pair in key_value_pairs(own))


def _has_state(own: Any) -> bool:
    stored = [getattr(layer, "conv_states", None) for layer in layers_of(own)]
    states = [s.values() if isinstance(s, dict) else [s] for s in stored]
    return any(isinstance(state, Tensor) for group in states for state in group)


def crop(state: CacheState, count: int) -> CacheState:
    """Drops the last `count` slots of every row. A `count` larger than the cache is passed on: what
    the library does then is under test."""
    if not state.slots:
        return state
    if reason := _why_not_croppable(state, count):
        raise NotImplementedError(reason)
    # All releases with such a method take a negative number as a count.
    state.own.crop(-count)
    return replace(state, slots=max(0, state.slots - count), fresh=0)


def _why_not_croppable(state: CacheState, count: int) -> str | None:
    """Returns why `state` cannot be cropped by `count`, None if it can."""
    if not _offers(state.own, "crop"):
        return "this cache has no crop"
    if state.begun > state.slots - count and state.begun:
        return "the first token of a row chose its encoder output, so it has to stay"
    for layer in layers_of(state.own):
        records = getattr(layer, "record_past", False)
        if not getattr(layer, "is_croppable", True):
            return f"a {type(layer).__name__} cannot be cropped now"
        forgets = hasattr(layer, "conv_states") or (
            getattr(layer, "is_sliding", False)
            and state.room is None
            and state.slots >= layer.sliding_window
        )
        if forgets and not records:
            return f"a {type(layer).__name__} has forgotten what came before"
        if forgets and count > state.fresh:
            return f"a {type(layer).__name__} records no more than was fed since the last crop"
    return None


def reorder(model: Any, state: CacheState, rows: Tensor) -> CacheState:
    """Returns the cache whose row i is row rows[i] of `state`."""
    count = len(rows)
    encoded = None if state.encoded is None else state.encoded[rows]
    after = replace(state, rows=count, encoded=encoded)
    if state.own is None or not state.slots:
        if count != state.rows and (state.room is not None or _has_batch(state.own)):
            raise NotImplementedError("this cache is empty, and made for a number of rows")
        return after
    if isinstance(state.own, tuple | list):
        return replace(after, own=_reorder_tuples(model, state, after, rows))
    repeats = count // state.rows
    each = torch.arange(state.rows, device=rows.device).repeat_interleave(repeats)
    if count == state.rows and _offers(state.own, "reorder_cache"):
        state.own.reorder_cache(rows)
    elif repeats > 1 and torch.equal(each, rows) and _offers(state.own, "batch_repeat_interleave"):
        state.own.batch_repeat_interleave(repeats)
    elif _offers(state.own, "batch_select_indices"):
        state.own.batch_select_indices(rows)
    else:
        raise NotImplementedError("this cache cannot change its rows so")
    return after


def _reorder_tuples(model: Any, state: CacheState, after: CacheState, rows: Tensor) -> Any:
    """Reorders a cache of tuples by the model's own function, which keeps the number of rows and is
    made for beams of one prompt: their encoder outputs are the same."""
    reorder_cache = reorder_of(model)
    if reorder_cache is None or len(rows) != state.rows:
        raise NotImplementedError("this cache cannot change its rows so")
    before, wanted = state.encoded, after.encoded
    if before is not None and wanted is not None and not torch.equal(before, wanted):
        raise NotImplementedError("this cache cannot move the encoder output of a row")
    return reorder_cache(state.own, rows)


def reset(state: CacheState) -> CacheState:
    """Empties the same cache object for another sequence."""
    if state.own is None:
        return state
    if not all(_offers(part, "reset") for part in _parts_of(state.own)):
        raise NotImplementedError("this cache has no reset")
    state.own.reset()
    return replace(state, slots=0, fresh=0, encoded=None, begun=0)


def save(state: CacheState) -> CacheState:
    """Returns the cache itself, if it can be pickled."""
    try:
        pickle.loads(pickle.dumps(state))
    except Exception as error:
        raise NotImplementedError(f"this cache cannot be pickled: {error}") from error
    return state


def view(state: CacheState) -> View:
    """Returns the keys and values of each layer [rows, heads, held, width], the newest last; None
    for a layer without, and for one that stores them in another form."""
    if state.own is None or not state.slots:
        return []
    pairs = list(key_value_pairs(state.own))
    if is_quantised(self_attention_of(state.own), layers_of(state.own)):
        return [None] * len(pairs)
    return [_filled_part(state, pair) for pair in pairs]


def _filled_part(
    state: CacheState, pair: tuple[Tensor, Tensor] | None
) -> tuple[Tensor, Tensor] | None:
    if pair is None or pair[0].shape[0] != state.rows:
        return None
    if state.room is None:
        return pair
    keys, values = pair
    return keys[:, :, : state.slots], values[:, :, : state.slots]


def unused(state: CacheState) -> list[Tensor]:
    """Returns writable views of the slots of a preallocated cache that hold nothing."""
    if state.own is None or state.room is None:
        return []
    pairs = key_value_pairs(state.own)
    found = [tensor[:, :, state.slots :] for pair in pairs if pair for tensor in pair]
    return [tensor for tensor in found if tensor.numel()]


def windows(own: Any, config: Any, layers: int) -> list[int | None]:
    """Returns how many entries each layer must keep, None for all: a window counts the token
    itself, so it is one less. Reads the layers of a cache, or else the configuration."""
    if layers_of(own):
        return [_window_of(layer) for layer in layers_of(own)]
    window = getattr(config, "sliding_window", None)
    kinds = getattr(config, "layer_types", None)
    if not isinstance(window, int) or getattr(config, "use_sliding_window", None) is False:
        return [None] * layers
    if not isinstance(kinds, Sequence):
        return [window - 1] * layers
    return [None if kind == "full_attention" else window - 1 for kind in kinds]


def _window_of(layer: Any) -> int | None:
    if not getattr(layer, "is_sliding", False):
        return None
    window = getattr(layer, "sliding_window", None)
    window = getattr(layer, "max_cache_len", None) if window is None else window
    return window - 1 if isinstance(window, int) else None


def _offers(own: Any, method: str) -> bool:
    """Whether a cache has `method`, and so have all parts and layers that it calls."""
    if getattr(own, method, None) is None or not _covers_states(own, method):
        return False
    check = getattr(own, "check_dynamic_cache", None)
    if check is not None and method not in ("reset", "reorder_cache"):
        try:
            check(method)
        except (TypeError, ValueError):
            return False
    layers = [layer for part in _parts_of(own) for layer in layers_of(part)]
    return all(hasattr(layer, method) and _covers_layer(layer, method) for layer in layers)


def _parts_of(own: Any) -> list[Any]:
    """The caches that `own` is made of: two for an encoder-decoder model, else itself."""
    if hasattr(own, "self_attention_cache"):
        return [own.self_attention_cache, own.cross_attention_cache]
    return [own]


def _covers_states(own: Any, method: str) -> bool:
    """Whether `method` of a cache of an older layout changes all that the cache holds. A class with
    states that inherits the method from one with keys alone leaves its states as they are."""
    if not any(hasattr(own, word) for word in ("conv_states", "conv_cache", "ssm_states")):
        return True
    owner = next(base for base in type(own).__mro__ if method in vars(base))
    return owner.__module__ == type(own).__module__


def _covers_layer(layer: Any, method: str) -> bool:
    """Whether `method`, which changes rows, changes all that a layer holds.

    Each layer class that holds more than its base overrides `reorder_cache` to move that too. If
    `method` is inherited from a class further up than `reorder_cache`, it moves a part only.
    """
    if not method.startswith("batch_"):
        return True
    classes = type(layer).__mro__
    depths = [
        next((depth for depth, base in enumerate(classes) if word in vars(base)), len(classes))
        for word in (method, "reorder_cache")
    ]
    return depths[0] <= depths[1]
