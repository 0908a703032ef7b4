"""What can be done to a cache of the transformers library, by the library's own methods.

Each function changes nothing before it refuses, which it does by NotImplementedError: where the
installed release has no such method for this cache, or says that it cannot be used now.
"""

from __future__ import annotations

import pickle
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from kvfuzz.subjects.transformers.tf_held import Held, inner, is_sized, layers_of, pairs, parts

View = list[tuple[Tensor, Tensor] | None]


def crop(held: Held, count: int) -> Held:
    """Drop the last `count` slots of every row. More than there are is passed on as it is: what
    the library makes of that is under test."""
    if not held.slots:
        return held
    if reason := _uncroppable(held, count):
        raise NotImplementedError(reason)
    # All releases with such a method take a negative number as a count.
    held.own.crop(-count)
    return replace(held, slots=max(0, held.slots - count), fresh=0)


def _uncroppable(held: Held, count: int) -> str | None:
    """Why `held` cannot be cropped by `count`, None if it can."""
    if not _offers(held.own, "crop"):
        return "this cache has no crop"
    if held.begun > held.slots - count and held.begun:
        return "what a row attends to was chosen by its first token, which has to stay"
    for layer in layers_of(held.own):
        records = getattr(layer, "record_past", False)
        if not getattr(layer, "is_croppable", True):
            return f"a {type(layer).__name__} cannot be cropped now"
        forgets = hasattr(layer, "conv_states") or (
            getattr(layer, "is_sliding", False)
            and not _preallocated(held)
            and held.slots >= layer.sliding_window
        )
        if forgets and not records:
            return f"a {type(layer).__name__} has forgotten what came before"
        if forgets and count > held.fresh:
            return f"a {type(layer).__name__} records no more than was fed since the last crop"
    return None


def reorder(model: Any, held: Held, rows: Tensor) -> Held:
    """Row i of the new cache is row rows[i] of the old."""
    count = len(rows)
    after = replace(held, rows=count, encoded=None if held.encoded is None else held.encoded[rows])
    if held.own is None or not held.slots:
        if count != held.rows and (held.room is not None or is_sized(held.own)):
            raise NotImplementedError("this cache is empty, and made for a number of rows")
        return after
    if isinstance(held.own, tuple | list):
        return replace(after, own=_by_model(model, held, after, rows))
    repeats = count // held.rows
    each = torch.arange(held.rows, device=rows.device).repeat_interleave(repeats)
    if count == held.rows and _offers(held.own, "reorder_cache"):
        held.own.reorder_cache(rows)
    elif repeats > 1 and torch.equal(each, rows) and _offers(held.own, "batch_repeat_interleave"):
        held.own.batch_repeat_interleave(repeats)
    elif _offers(held.own, "batch_select_indices"):
        held.own.batch_select_indices(rows)
    else:
        raise NotImplementedError("this cache cannot change its rows so")
    return after


def _by_model(model: Any, held: Held, after: Held, rows: Tensor) -> Any:
    """Rows of a cache of tuples, which the model itself knows how to reorder: as many as before,
    and of beams of one prompt, so that what they attend to in an encoder is the same."""
    method = getattr(model, "_reorder_cache", None)
    if method is None or len(rows) != held.rows:
        raise NotImplementedError("this cache cannot change its rows so")
    before, wanted = held.encoded, after.encoded
    if before is not None and wanted is not None and not torch.equal(before, wanted):
        raise NotImplementedError("this cache cannot move what a row attends to in the encoder")
    return method(held.own, rows)


def reset(held: Held) -> Held:
    """The same cache object, emptied for another sequence."""
    if held.own is None:
        return held
    if not all(_offers(part, "reset") for part in parts(held.own)):
        raise NotImplementedError("this cache has no reset")
    held.own.reset()
    return replace(held, slots=0, fresh=0, encoded=None, begun=0)


def save(held: Held) -> Held:
    """The cache itself, if it can be pickled."""
    try:
        pickle.loads(pickle.dumps(held))
    except Exception as error:
        raise NotImplementedError(f"this cache cannot be pickled: {error}") from error
    return held


def view(held: Held) -> View:
    """The keys and values of each layer [rows, heads, held, width], the newest last; None for a
    layer without, and for one that stores them in another form."""
    if held.own is None or not held.slots:
        return []
    quantised = any(hasattr(layer, "_quantized_keys") for layer in layers_of(held.own))
    if quantised or hasattr(inner(held.own), "_quantized_key_cache"):
        return [None] * len(list(pairs(held.own)))
    return [_logical(held, pair) for pair in pairs(held.own)]


def _logical(held: Held, pair: tuple[Tensor, Tensor] | None) -> tuple[Tensor, Tensor] | None:
    if pair is None or pair[0].shape[0] != held.rows:
        return None
    if not _preallocated(held):
        return pair
    keys, values = pair
    return keys[:, :, : held.slots], values[:, :, : held.slots]


def unused(held: Held) -> list[Tensor]:
    """The slots of a preallocated cache that hold nothing."""
    if held.own is None or not _preallocated(held):
        return []
    found = [t[:, :, held.slots :] for pair in pairs(held.own) if pair for t in pair]
    return [tensor for tensor in found if tensor.numel()]


def windows(own: Any, config: Any, layers: int) -> list[int | None]:
    """How many entries each layer must keep, None for all: a window counts the token itself, so
    it is one less. Read off the layers of a cache, else off the configuration."""
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


def _preallocated(held: Held) -> bool:
    return held.room is not None


def _offers(own: Any, method: str) -> bool:
    """Whether a cache has `method`, and so have all of its parts and layers that it calls."""
    if getattr(own, method, None) is None or not _is_of_states(own, method):
        return False
    check = getattr(own, "check_dynamic_cache", None)
    if check is not None and method not in ("reset", "reorder_cache"):
        try:
            check(method)
        except (TypeError, ValueError):
            return False
    layers = [layer for part in parts(own) for layer in layers_of(part)]
    return all(hasattr(layer, method) and _knows_all(layer, method) for layer in layers)


def _is_of_states(own: Any, method: str) -> bool:
    """Whether `method` of a cache of an older layout was written for all that it holds: what one
    with states inherits from one with keys alone does nothing to the states."""
    if not any(hasattr(own, word) for word in ("conv_states", "conv_cache", "ssm_states")):
        return True
    owner = next(base for base in type(own).__mro__ if method in vars(base))
    return owner.__module__ == type(own).__module__


def _knows_all(layer: Any, method: str) -> bool:
    """Whether `method`, which changes rows, was written for all that a layer holds. Each layer that
    holds more than its base reorders that too; a method that is inherited from further up than that
    one would move a part of the rows."""
    if not method.startswith("batch_"):
        return True
    line = type(layer).__mro__
    owners = [
        next((at for at, base in enumerate(line) if word in vars(base)), len(line))
        for word in (method, "reorder_cache")
    ]
    return owners[0] <= owners[1]
