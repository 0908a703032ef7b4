"""Decoders of the transformers library: tiny ones of any architecture, and saved checkpoints.

What differs between releases (the name of the cache argument, how a cache is built, which
attention a model has) is read off signatures and classes, not off the release number.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from functools import lru_cache, reduce
from typing import Any

import torch

from kvfuzz.errors import InvalidSubject, UsageError, did_you_mean
from kvfuzz.subjects.float64 import promoted
from kvfuzz.subjects.loading import Options
from kvfuzz.subjects.protocol import Factory
from kvfuzz.subjects.transformers.build import built, text_config
from kvfuzz.subjects.transformers.caches import CLASSES, MOST_SLOTS
from kvfuzz.subjects.transformers.call import NoCache
from kvfuzz.subjects.transformers.probe import ROOM, Abilities, abilities, merged
from kvfuzz.subjects.transformers.source import Source, source_of
from kvfuzz.subjects.transformers.subject import TransformersSubject, longest
from kvfuzz.subjects.transformers.tiny import DRAWN, fields_of
from kvfuzz.subjects.transformers.weights import Drawn

ATTENTIONS = ("eager", "sdpa")
OWN_SETTINGS = ("attn", "cache")
"""The settings that are no fields of a model's configuration."""

Settings = Mapping[str, Any]


def factory(rest: str, options: Options) -> Factory:
    """`transformers:MODEL_TYPE` draws tiny random models; `transformers:DIRECTORY` loads one.

    `options.config` sets `attn`, `cache` and the fields of the model's configuration. Raises
    InvalidSubject for what is not a language model with a cache, UsageError for a setting that the
    model does not have or that transformers refuses.
    """
    fixed = options.config
    source = source_of(rest, decoder_alone=fixed.get("is_encoder_decoder") is False)
    attentions = _attentions(source, fixed)
    random = source.checkpoint is None
    dtypes = (options.dtype,) if options.dtype else ("float32", "float64")
    module = _modules(source, attentions[0], options.device)
    choices = _choices(source, attentions, fixed)
    first = {word: values[0] for word, values in choices.items()} | dict(fixed)
    # Built once now, so that settings are refused at the door and not at the first case.
    simplest = [module(dtype, first) for dtype in dtypes]
    others = [{**first, word: value} for word in DRAWN for value in choices.get(word, ())[1:]]
    models = [simplest[0], *(module(dtypes[0], settings) for settings in others)]
    able = reduce(merged, (_able(source, one, fixed, dtypes[0]) for one in models))
    kinds = _kinds(source, able, fixed)

    def build(seed: int, dtype: str, config: Settings) -> TransformersSubject:
        settings = {**fixed, **config}
        kind = settings.get("cache", kinds[0])
        weights = seed if random else None
        return TransformersSubject(source, able, module(dtype, settings), kind, weights, dtype)

    if "cache" not in fixed:
        choices["cache"] = kinds
    return Factory(source.name, build, dtypes, choices, dict(fixed), seeded=random)


def _modules(source: Source, attn: str, device: str) -> Callable[[str, Settings], Drawn]:
    """A function of dtype and settings that gives the module: one for all seeds, since a fresh one
    takes longer than the case that it is for."""

    @lru_cache(maxsize=16)
    def module(attn: str, dtype: str, settings: str) -> Drawn:
        return built(source, json.loads(settings), attn, dtype, device)

    def found(dtype: str, settings: Settings) -> Drawn:
        own = {word: value for word, value in settings.items() if word not in OWN_SETTINGS}
        return module(settings.get("attn", attn), dtype, json.dumps(own, sort_keys=True))

    return found


def _able(source: Source, drawn: Drawn, config: Settings, dtype: str) -> Abilities:
    """What a module can do, with the cache that was asked for or any. Raises UsageError if there is
    no such kind."""
    kind = config.get("cache")
    if kind is not None and kind not in CLASSES:
        raise UsageError(
            f"there is no cache {kind!r}{did_you_mean(str(kind), CLASSES)}: choose from "
            f"{', '.join(CLASSES)}"
        )
    model = drawn.at(None)
    room = min(longest(text_config(model.config), 0) or ROOM, MOST_SLOTS)
    with torch.no_grad(), promoted() if dtype == "float64" else nullcontext():
        return abilities(source, model, room, kind)


def _kinds(source: Source, able: Abilities, config: Settings) -> tuple[str, ...]:
    """The kinds of cache to draw from. Raises UsageError if the one asked for cannot be had, and
    InvalidSubject if the model hands back none, whatever it is given."""
    if "cache" in config and not able.kinds:
        raise UsageError(f"{source.name} cannot have the cache {able.problems[0]}")
    if not able.kinds and all(NoCache.__name__ in problem for problem in able.problems):
        raise InvalidSubject(f"{source.name} keeps no cache: {able.problems[0]}")
    return able.kinds or ("own",)  # whatever is wrong with all of them is for the cases to show


def _attentions(source: Source, config: Mapping[str, Any]) -> tuple[str, ...]:
    """The attentions to draw from. Raises UsageError if the one asked for is not among them."""
    has_sdpa = getattr(source.model_class, "_supports_sdpa", False)
    offered = ATTENTIONS if has_sdpa else ATTENTIONS[:1]
    if "attn" not in config:
        return offered
    asked = config["attn"]
    if asked not in offered:
        raise UsageError(
            f"{source.name} has no attention {asked!r}{did_you_mean(str(asked), offered)}: "
            f"choose from {', '.join(offered)}"
        )
    return (asked,)


def _choices(
    source: Source, attentions: tuple[str, ...], config: Mapping[str, Any]
) -> dict[str, tuple[Any, ...]]:
    """What a strategy may draw of attentions and fields, which is what the user has not set."""
    choices: dict[str, tuple[Any, ...]] = {"attn": attentions}
    if source.checkpoint is None:
        known = fields_of(source.config_class)
        choices |= {name: values for name, values in DRAWN.items() if name in known}
    return {name: values for name, values in choices.items() if name not in config}
