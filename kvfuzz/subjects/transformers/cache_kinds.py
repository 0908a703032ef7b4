"""The kinds of cache that the transformers library offers, and how to build each.

A kind is a word that a case may draw. A kind that the installed release lacks, or that raises on a
model's first calls, is not drawn. A kind whose numbers are wrong is: that is what a case finds.
"""

from __future__ import annotations

import inspect
import math
import sys
from collections.abc import Mapping
from typing import Any

import torch

from kvfuzz.subjects.transformers.caches import layers_of
from kvfuzz.subjects.transformers.private import refuses_cache_objects, refuses_static_cache
from kvfuzz.subjects.transformers.source import CACHE_NAMES, Source

# Each kind and the class of the library that makes it, simplest first. A model makes its `own`
# cache when it is given none.
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
"""The names by which `generate` is asked for a kind that it does not use by default."""

BACKENDS = ("fp8", "quanto", "hqq")
# More slots than any case fills; a checkpoint may say that it takes very many more.
MOST_SLOTS = 4096
# Four bits a value are as coarse as float8. Nothing bounds what that does to a logit: values
# outgrow the scale that a short prompt sets, and are clipped. The largest change seen, as a share
# of the largest logit, was 0.53 in one survey of random tiny models and 0.99 in the next.
QUANTISED_DTYPE, QUANTISED_BOUND = torch.float8_e5m2, math.inf


class Unavailable(Exception):
    """The installed library, or this model, has no cache of this kind."""


def kinds_of(source: Source) -> tuple[str, ...]:
    """Returns the kinds that the installed library has a class for and does not deny to the
    model."""
    if source.cache_name not in CACHE_NAMES[:2]:
        return ("own",)
    there = [kind for kind in CLASSES if kind == "own" or _class_of(source, kind) is not None]
    return tuple(kind for kind in there if not _is_denied(source.model_class, kind))


def _is_denied(model_class: Any, kind: str) -> bool:
    """Whether a class of models says that it takes no cache of `kind`."""
    if kind in PREALLOCATED:
        return kind == "static" and refuses_static_cache(model_class)
    return kind != "own" and refuses_cache_objects(model_class)


def build_cache(source: Source, kind: str, model: Any, rows: int, slots: int) -> Any:
    """Returns an empty cache of `kind` for `rows` rows, preallocated kinds with room for `slots`;
    None where the model makes its own. Raises Unavailable."""
    if kind == "own":
        return None
    found = _class_of(source, kind)
    if found is None:
        raise Unavailable(f"this release has no {CLASSES[kind]}")
    config = model.config
    if not config.is_encoder_decoder or not hasattr(source.cache_module, "EncoderDecoderCache"):
        return _build_one(found, kind, model, rows, slots)
    wrapper = source.cache_module.EncoderDecoderCache
    # Cross-attention is written once, and holds no more than the encoder output: it can be dynamic.
    cross = _build_one(_class_of(source, "dynamic"), "dynamic", model, rows, slots)
    return wrapper(_build_one(found, kind, model, rows, slots), cross)


def find_own_class(model: Any) -> Any:
    """Returns the cache class that a model's own file defines, None if there is none: some models
    of older releases hand back no cache unless they are given one of these."""
    place = type(model).__module__
    for name, found in vars(sys.modules[place]).items():
        if inspect.isclass(found) and name.endswith("Cache") and found.__module__ == place:
            return found
    return None


def build_own(found: Any, model: Any, rows: int) -> Any:
    """Builds a cache of a class that `find_own_class` found."""
    return found(**_accepted(found, _fields(model, rows, MOST_SLOTS)))


def _build_one(found: Any, kind: str, model: Any, rows: int, slots: int) -> Any:
    fields = _fields(model, rows, slots)
    if kind == "quantised":
        return _build_quantised(found, fields)
    cache = found(**_accepted(found, fields))
    if kind == "recording":
        if not any(hasattr(layer, "record_past") for layer in cache.layers):
            raise Unavailable("no layer of this model forgets anything, so none has to record it")
        cache.activate_past_recording()
    if kind in PREALLOCATED and not _separates_layers(cache):
        raise Unavailable(f"the {CLASSES[kind]} of this release holds one layer alone")
    layers = layers_of(cache)
    windowed = any(getattr(layer, "is_sliding", False) for layer in layers)
    if kind in ("sliding", "hybrid") and layers and not windowed:
        raise Unavailable(f"no layer of this model has a window, so {kind} is static again")
    return cache


def _fields(model: Any, rows: int, slots: int) -> dict[str, Any]:
    """Everything that a constructor of a cache may ask for, by name."""
    parameter = next(model.parameters())
    return {
        "config": model.config,
        "max_batch_size": rows,
        "batch_size": rows,
        "max_cache_len": slots,
        "device": parameter.device,
        "dtype": parameter.dtype,
    }


def _accepted(found: Any, fields: Mapping[str, Any]) -> dict[str, Any]:
    """Those of `fields` that the constructor of `found` names."""
    names = inspect.signature(found.__init__).parameters
    chosen = {name: value for name, value in fields.items() if name in names}
    if "max_batch_size" in chosen:
        chosen.pop("batch_size", None)  # the older name of the same, deprecated where both exist
    return chosen


def _build_quantised(found: Any, fields: Mapping[str, Any]) -> Any:
    """Builds a quantised cache of the first backend that is installed."""
    problems = []
    for backend in BACKENDS:
        # Short enough that a case gets past what is kept in full, and groups as small as a head.
        sizes = {} if backend == "fp8" else {"nbits": 4, "residual_length": 4, "q_group_size": 32}
        try:
            return found(backend=backend, **_accepted(found, fields), **sizes)
        except Exception as error:
            problems.append(f"{backend}: {error}")
    raise Unavailable(f"no backend quantises here ({'; '.join(problems)})")


def _separates_layers(cache: Any) -> bool:
    """Whether `cache` holds the keys of each layer in a tensor of their own."""
    layers = getattr(cache, "layers", None)
    layers = getattr(cache, "key_cache", None) if layers is None else layers
    return layers is not None and not isinstance(layers, torch.Tensor)


def _class_of(source: Source, kind: str) -> Any:
    """Returns the class that makes `kind`; None where the release has none of its own."""
    name = CLASSES[kind]
    found = getattr(source.cache_module, name, None) if name else None
    if found is None:
        return None
    if kind == "recording" and not hasattr(found, "activate_past_recording"):
        return None
    if kind in ("sliding", "hybrid") and found is source.cache_module.StaticCache:
        return None  # an alias is the same cache again
    return found
