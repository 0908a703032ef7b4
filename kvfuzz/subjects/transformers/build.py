"""Builds the modules of a source: its configuration with settings, then the model."""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import nullcontext
from typing import Any

import torch

from kvfuzz.errors import InvalidSubject, KvfuzzError, UsageError
from kvfuzz.subjects.float64 import promoted
from kvfuzz.subjects.transformers.call import call_of
from kvfuzz.subjects.transformers.source import Source, told
from kvfuzz.subjects.transformers.tf_encoder import blank
from kvfuzz.subjects.transformers.tiny import own_names, shrunk, tokens_apart
from kvfuzz.subjects.transformers.weights import Drawn

# More would take seconds to draw for each seed and show no more: faults are in the layers' kinds.
MOST_PARAMETERS = 20_000_000


def built(source: Source, settings: Mapping[str, Any], attn: str, dtype: str, device: str) -> Drawn:
    """The module of `source` with `settings`, after one pass that shows that it runs.

    Raises UsageError for a field that its configuration does not have, or if it cannot be built
    with these settings; InvalidSubject if it cannot be built without any.
    """
    try:
        config = _config(source, settings)
        # Not promoted: a checkpoint's float32 bytes would be read as float64.
        module = _module(source, config, attn, getattr(torch, dtype)).eval().to(device)
        with torch.no_grad(), promoted() if dtype == "float64" else nullcontext():
            tokens = torch.zeros(1, 2, dtype=torch.int64, device=device)
            call_of(module).uncached(module, tokens, blank(module, 1))
    except KvfuzzError:
        raise
    except Exception as error:
        if settings:
            text = json.dumps(settings, sort_keys=True)
            raise UsageError(f"{source.name} cannot have {text}: {told(error)}") from error
        raise InvalidSubject(f"{source.name} cannot be built in {dtype}: {told(error)}") from error
    return Drawn(module)


def _config(source: Source, settings: Mapping[str, Any]) -> Any:
    """The configuration of `source` with `settings`. Raises whatever its class raises."""
    chosen = own_names(source.config_class, settings, source.name)
    if source.checkpoint is not None:
        return source.config_class.from_dict({**source.settings, **chosen})
    config = source.config_class(**shrunk(source.config_class, chosen))
    if not config.is_encoder_decoder and text_config(config) is not config:
        raise InvalidSubject(
            f"{source.name} holds more than a decoder, so it cannot be made tiny: name the model "
            "type of its text part, or a checkpoint"
        )
    tokens_apart(config, chosen)
    return config


def text_config(config: Any) -> Any:
    """The part of `config` that describes the decoder of text; old releases have no parts."""
    parts = getattr(config, "get_text_config", None)
    return config if parts is None else parts(decoder=True)


def _module(source: Source, config: Any, attn: str, dtype: torch.dtype) -> Any:
    """The model, its parameters and buffers as the library makes them in `dtype`."""
    # A later `.to(dtype)` would not do: it rounds buffers such as rotary frequencies, which the
    # library keeps in float32.
    named = "dtype" if hasattr(config, "dtype") else "torch_dtype"
    asked = {named: dtype, "trust_remote_code": False}
    if hasattr(config, "_attn_implementation"):
        asked["attn_implementation"] = attn
    if dtype is torch.float64 and hasattr(config, "_experts_implementation"):
        asked["experts_implementation"] = "eager"  # the grouped kernels have no float64
    # First values come from the global generator (those of vectors are kept): it is lent a seed,
    # so that they are the same each time, and handed back as it was.
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(0)
        if source.checkpoint is not None:
            path = str(source.checkpoint)
            return source.auto.from_pretrained(path, config=config, local_files_only=True, **asked)
        _refuse_large(source, config, asked)
        return source.auto.from_config(config, **asked)


def _refuse_large(source: Source, config: Any, asked: Mapping[str, Any]) -> None:
    """Raise InvalidSubject if the model would be large in spite of its tiny configuration."""
    try:
        with torch.device("meta"):
            module = source.auto.from_config(config, **asked)
    except Exception:
        return  # some models read their tensors while they are built; if not that, the build tells
    count = sum(parameter.numel() for parameter in module.parameters())
    if count > MOST_PARAMETERS:
        largest = max(module.named_parameters(), key=lambda named: named[1].numel())
        raise InvalidSubject(
            f"{source.name} has {count:,} parameters, more than {MOST_PARAMETERS:,}, even made "
            f"tiny: set the field that sizes {largest[0]} {list(largest[1].shape)}"
        )
