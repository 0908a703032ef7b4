"""The kinds of cache of the transformers library: which there are, and how each is built.

A kind is a word that a case may draw. What a release lacks, or what raises on a model's first
calls, is not drawn from; nothing is left out because its numbers are wrong.
"""

from __future__ import annotations

import inspect
import math
import sys
from collections.abc import Mapping
from typing import Any

import torch

from kvfuzz.subjects.transformers.source import CACHE_NAMES, Source
from kvfuzz.subjects.transformers.tf_held import layers_of

# Each kind and the class of the library that makes it, simplest first. `own` is what the model
# makes when it is given no cache.
CLASSES: Mapping[str, str | None] = {
    "dynamic": "DynamicCache",
    "own": None,
    "recording": "DynamicCache",
    "static": "StaticCache",
    "sliding": "SlidingWindowCache",
    "hybrid": "HybridCache",
    "quantised": "QuantizedCache",
}
PREALLOCATED = ("static", "sliding", "hybrid")
GENERATED: Mapping[str, str] = {
    "static": "static",
    "sliding": "sliding_window",
    "hybrid": "hybrid",
}
"""What `generate` calls the kinds that it does not use unasked."""

BACKENDS = ("fp8", "quanto", "hqq")
# More slots than any case fills; a checkpoint may say that it takes very many more.
MOST_SLOTS = 4096
# Four bits a value are as coarse as float8. There is no bound to what that does to a logit: values
# outgrow the scale that a short prompt sets, and are cut off. 0.53 of the largest was the most in
# one survey of random tiny models and 0.99 in the next.
QUANTISED_DTYPE, QUANTISED_BOUND = torch.float8_e5m2, math.inf


class Unavailable(Exception):
    """This kind of cache cannot be had from the installed library, or for this model."""


def names_of(source: Source) -> tuple[str, ...]:
    """The kinds that the installed library has a class for and does not say that the model cannot
    have, by the name of the forward's cache."""
    if source.cache_name not in CACHE_NAMES[:2]:
        return ("own",)
    there = [kind for kind in CLASSES if kind == "own" or _class(source, kind) is not None]
    return tuple(kind for kind in there if not _is_denied(source.model_class, kind))


def _is_denied(model_class: Any, kind: str) -> bool:
    """Whether a class of models says that it cannot have a kind of cache."""
    if kind in PREALLOCATED:
        return getattr(model_class, "_supports_static_cache", None) is False and kind == "static"
    return kind != "own" and getattr(model_class, "_supports_cache_class", None) is False


def made(source: Source, kind: str, model: Any, rows: int, slots: int) -> Any:
    """An empty cache of `kind` for `rows` rows, preallocated kinds with room for `slots`; None
    where the model is to make its own. Raises Unavailable."""
    if kind == "own":
        return None
    found = _class(source, kind)
    if found is None:
        raise Unavailable(f"this release has no {CLASSES[kind]}")
    config = model.config
    if not config.is_encoder_decoder or not hasattr(source.cache_module, "EncoderDecoderCache"):
        return _one(found, kind, model, rows, slots)
    wrapper = source.cache_module.EncoderDecoderCache
    # Cross-attention is written once, and never more than what the encoder says.
    cross = _one(_class(source, "dynamic"), "dynamic", model, rows, slots)
    return wrapper(_one(found, kind, model, rows, slots), cross)


def own_class(model: Any) -> Any:
    """The cache class that stands beside the model's own in its file, None if there is none: some
    models of older releases hand back no cache unless they are given one of these."""
    place = type(model).__module__
    for name, found in vars(sys.modules[place]).items():
        if inspect.isclass(found) and name.endswith("Cache") and found.__module__ == place:
            return found
    return None


def built_own(found: Any, model: Any, rows: int) -> Any:
    """An instance of a class that `own_class` found."""
    return found(**_taken(found, _fields(model, rows, MOST_SLOTS)))


def _one(found: Any, kind: str, model: Any, rows: int, slots: int) -> Any:
    fields = _fields(model, rows, slots)
    if kind == "quantised":
        return _quantised(found, fields)
    cache = found(**_taken(found, fields))
    if kind == "recording":
        if not any(hasattr(layer, "record_past") for layer in cache.layers):
            raise Unavailable("no layer of this model forgets anything, so none has to record it")
        cache.activate_past_recording()
    if kind in PREALLOCATED and not _has_layers(cache):
        raise Unavailable(f"the {CLASSES[kind]} of this release holds one layer alone")
    layers = layers_of(cache)
    windowed = any(getattr(layer, "is_sliding", False) for layer in layers)
    if kind in ("sliding", "hybrid") and layers and not windowed:
        raise Unavailable(f"no layer of this model has a window, so {kind} is static again")
    return cache


def _fields(model: Any, rows: int, slots: int) -> dict[str, Any]:
    """Whatever a constructor of a cache may ask for, by name."""
    parameter = next(model.parameters())
    return {
        "config": model.config,
        "max_batch_size": rows,
        "batch_size": rows,
        "max_cache_len": slots,
        "device": parameter.device,
        "dtype": parameter.dtype,
    }


def _taken(found: Any, fields: Mapping[str, Any]) -> dict[str, Any]:
    """Those of `fields` that the constructor of `found` names."""
    names = inspect.signature(found.__init__).parameters
    chosen = {name: value for name, value in fields.items() if name in names}
    if "max_batch_size" in chosen:
        chosen.pop("batch_size", None)  # the older name of the same, deprecated where both stand
    return chosen


def _quantised(found: Any, fields: Mapping[str, Any]) -> Any:
    """A quantised cache of the first backend that is installed."""
    problems = []
    for backend in BACKENDS:
        # Short enough that a case gets past what is kept in full, and groups as small as a head.
        sizes = {} if backend == "fp8" else {"nbits": 4, "residual_length": 4, "q_group_size": 32}
        try:
            return found(backend=backend, **_taken(found, fields), **sizes)
        except Exception as error:
            problems.append(f"{backend}: {error}")
    raise Unavailable(f"no backend quantises here ({'; '.join(problems)})")


def _has_layers(cache: Any) -> bool:
    """Whether `cache` holds the keys of each layer apart."""
    held = getattr(cache, "layers", None)
    held = getattr(cache, "key_cache", None) if held is None else held
    return held is not None and not isinstance(held, torch.Tensor)


def _class(source: Source, kind: str) -> Any:
    """The class that makes `kind`; None where the release has none of its own by that name."""
    name = CLASSES[kind]
    found = getattr(source.cache_module, name, None) if name else None
    if found is None:
        return None
    if kind == "recording" and not hasattr(found, "activate_past_recording"):
        return None
    if kind in ("sliding", "hybrid") and found is source.cache_module.StaticCache:
        return None  # an alias is the same cache again
    return found
