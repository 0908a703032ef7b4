"""Builds the module of a source: its configuration with settings, then the model."""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import nullcontext
from typing import Any

import torch

from kvfuzz.errors import InvalidSubject, KvfuzzError, UsageError
from kvfuzz.subjects.float64 import promoted
from kvfuzz.subjects.transformers.call import blank_encoding, forward_of
from kvfuzz.subjects.transformers.private import can_choose_attention, can_choose_experts
from kvfuzz.subjects.transformers.source import Source, describe
from kvfuzz.subjects.transformers.tiny import (
    rename_settings,
    separate_special_tokens,
    shrink_config,
    shrink_parts,
)
from kvfuzz.subjects.transformers.weights import SeededModule

# A larger model would take seconds to draw for each seed and show no more: a fault belongs to a
# kind of layer, and the tiny model has each kind.
MOST_PARAMETERS = 20_000_000


def build_module(
    source: Source, settings: Mapping[str, Any], attn: str, dtype: str, device: str
) -> SeededModule:
    """Builds the module of `source` with `settings`, and runs it once.

    Raises UsageError for a field that its configuration does not have, or if it cannot be built
    with these settings; InvalidSubject if it cannot be built without any.
    """
    try:
        config = _build_config(source, settings)
        # Outside `promoted`: inside, a checkpoint's float32 bytes would be read as float64.
        module = _build_model(source, config, attn, getattr(torch, dtype)).eval().to(device)
        if dtype == "float64":
            _widen(module)
        with torch.no_grad(), promoted() if dtype == "float64" else nullcontext():
            tokens = torch.zeros(1, 2, dtype=torch.int64, device=device)
            forward_of(module).uncached(module, tokens, blank_encoding(module, 1))
    except KvfuzzError:
        raise
    except Exception as error:
        if settings:
            text = json.dumps(settings, sort_keys=True)
            raise UsageError(f"{source.name} cannot have {text}: {describe(error)}") from error
        problem = f"{source.name} cannot be built in {dtype}: {describe(error)}"
        raise InvalidSubject(problem) from error
    return SeededModule(module)


def _widen(module: torch.nn.Module) -> None:
    """Makes float64 of the parameters of `module` that its code asks to be float32, as of a router:
    what they meet is float64 there."""
    for parameter in module.parameters():
        if parameter.dtype == torch.float32:
            parameter.data = parameter.data.double()


def _build_config(source: Source, settings: Mapping[str, Any]) -> Any:
    """Returns the configuration of `source` with `settings`. Raises whatever its class raises."""
    chosen = rename_settings(source.config_class, settings, source.name)
    if source.checkpoint is not None:
        return source.config_class.from_dict({**source.settings, **chosen})
    # Not its constructor: old names are read here.
    small = shrink_config(source.config_class, chosen)
    config = source.config_class.from_dict(small)
    if not config.is_encoder_decoder and text_config(config) is not config:
        raise InvalidSubject(
            f"{source.name} holds more than a decoder, so it cannot be made tiny: name the model "
            "type of its text part, or a checkpoint"
        )
    if not config.is_encoder_decoder and (parts := shrink_parts(source.config_class, chosen)):
        config = source.config_class.from_dict({**small, **parts})
    separate_special_tokens(config, chosen)
    return config


def text_config(config: Any) -> Any:
    """The part of `config` that describes the text decoder; in old releases, all of it."""
    parts = getattr(config, "get_text_config", None)
    return config if parts is None else parts(decoder=True)


def _build_model(source: Source, config: Any, attn: str, dtype: torch.dtype) -> Any:
    """Builds the model; the library makes its parameters and buffers in `dtype`."""
    # A later `.to(dtype)` would not do: it rounds buffers such as rotary frequencies, which the
    # library keeps in float32.
    dtype_argument = "dtype" if hasattr(config, "dtype") else "torch_dtype"
    arguments = {dtype_argument: dtype, "trust_remote_code": False}
    if can_choose_attention(config):
        arguments["attn_implementation"] = attn
    if dtype is torch.float64 and can_choose_experts(config):
        arguments["experts_implementation"] = "eager"  # the grouped kernels have no float64
    # The library draws first values from the global generator, and those of vectors are kept. It
    # gets a fixed seed, so that they are the same each time, and its own state back afterwards.
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(0)
        if source.checkpoint is not None:
            path = str(source.checkpoint)
            load = source.auto.from_pretrained
            return load(path, config=config, local_files_only=True, **arguments)
        _refuse_large(source, config, arguments)
        return source.auto.from_config(config, **arguments)


def _refuse_large(source: Source, config: Any, arguments: Mapping[str, Any]) -> None:
    """Raises InvalidSubject if the model is large in spite of its tiny configuration."""
    try:
        with torch.device("meta"):
            module = source.auto.from_config(config, **arguments)
    except Exception:
        return  # some models read their tensors while they are built; any other error comes again
    count = sum(parameter.numel() for parameter in module.parameters())
    if count > MOST_PARAMETERS:
        largest = max(module.named_parameters(), key=lambda named: named[1].numel())
        raise InvalidSubject(
            f"{source.name} has {count:,} parameters, more than {MOST_PARAMETERS:,}, even made "
            f"tiny: set the field that sizes {largest[0]} {list(largest[1].shape)}"
        )
