"""Subjects that run tiny random models of the copied code."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any
from unittest.mock import patch

from kvfuzz.subjects.loading import Options
from kvfuzz.subjects.protocol import Factory
from kvfuzz.subjects.transformers import factory as adapter
from kvfuzz.subjects.transformers.source import find_source
from tests.quality.injected.copies import Copy

SETTINGS: Mapping[str, Mapping[str, Any]] = {
    "lfm2": {
        "num_hidden_layers": 3,
        "layer_types": ["conv", "full_attention", "conv"],
        "conv_L_cache": 3,
    },
    "falcon_h1": {
        "mamba_n_heads": 8,
        "mamba_d_head": 8,
        "mamba_d_ssm": 64,
        "mamba_d_state": 8,
        "mamba_chunk_size": 8,
    },
}
"""Settings that a tiny model needs besides those that kvfuzz sets."""


class _Auto:
    """Builds models of one class, like an Auto class of the library."""

    def __init__(self, model_class: Any) -> None:
        self._class = model_class

    def from_config(self, config: Any, trust_remote_code: bool, **asked: Any) -> Any:
        return self._class._from_config(config, **asked)


def factory_of(copy: Copy, model: str, attn: str, cache: str) -> Factory:
    """Returns the factory of subjects that run the copied code and one kind of its caches, in
    float64."""
    source = find_source(model)
    model_class = getattr(copy.model, source.model_class.__name__)
    own = replace(
        source,
        name=copy.package,
        cache_module=copy.caches,
        auto=_Auto(model_class),
        model_class=model_class,
    )
    settings = {**SETTINGS.get(model, {}), "attn": attn, "cache": cache}
    with patch.object(adapter, "find_source", lambda *_, **__: own):
        return adapter.factory(model, Options(dtype="float64", config=settings))
