"""Private names of the transformers library: every one that kvfuzz reads is read here.

A release may rename them without notice, and then these functions answer as if the release had no
such thing. tests/adapters/test_private_names.py fails when a name of today is gone.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


def supports_sdpa(model_class: Any) -> bool:
    """Whether a class of models says that it runs `scaled_dot_product_attention`."""
    return bool(getattr(model_class, "_supports_sdpa", False))


def refuses_static_cache(model_class: Any) -> bool:
    """Whether a class of models says that it takes no static cache (releases before 4.54)."""
    return getattr(model_class, "_supports_static_cache", None) is False


def refuses_cache_objects(model_class: Any) -> bool:
    """Whether a class of models says that it takes tuples only (releases before 4.54)."""
    return getattr(model_class, "_supports_cache_class", None) is False


def can_choose_attention(config: Any) -> bool:
    """Whether models of `config` take an argument `attn_implementation`."""
    return hasattr(config, "_attn_implementation")


def can_choose_experts(config: Any) -> bool:
    """Whether models of `config` take an argument `experts_implementation`."""
    return hasattr(config, "_experts_implementation")


@contextmanager
def eager_experts(config: Any) -> Iterator[None]:
    """Inside, models of `config` run their experts one by one: the grouped kernels have no
    float64."""
    before = getattr(config, "_experts_implementation", None)
    if before is not None:
        config._experts_implementation = "eager"
    try:
        yield
    finally:
        if before is not None:
            config._experts_implementation = before


def reorder_of(model: Any) -> Any:
    """The function of `model` that reorders a cache of tuples; None if it has none."""
    return getattr(model, "_reorder_cache", None)


def is_quantised(cache: Any, layers: list[Any]) -> bool:
    """Whether `cache`, or one of its `layers`, stores quantised keys."""
    layered = any(hasattr(layer, "_quantized_keys") for layer in layers)
    return layered or hasattr(cache, "_quantized_key_cache")
