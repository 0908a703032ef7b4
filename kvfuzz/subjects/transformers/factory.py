"""Makes subjects of the transformers library: tiny models of any architecture, and checkpoints.

Releases differ in the name of the cache argument, in how a cache is built and in which attention a
model has. All of that is read from signatures and classes, not from the release number.
"""

from __future__ import annotations

import json
from collections import OrderedDict
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from functools import reduce
from typing import Any

import torch

from kvfuzz.case.dtypes import NARROW
from kvfuzz.errors import InvalidSubject, KvfuzzError, UsageError, did_you_mean
from kvfuzz.subjects.float64 import promoted
from kvfuzz.subjects.loading import Options
from kvfuzz.subjects.protocol import Factory
from kvfuzz.subjects.tensors import LARGE, free_memory
from kvfuzz.subjects.transformers.build import build_module, text_config
from kvfuzz.subjects.transformers.cache_kinds import CLASSES, MOST_SLOTS, Unavailable
from kvfuzz.subjects.transformers.call import NoCache
from kvfuzz.subjects.transformers.private import supports_sdpa
from kvfuzz.subjects.transformers.probe import ROOM, Abilities, merge, probe
from kvfuzz.subjects.transformers.source import Source, find_source
from kvfuzz.subjects.transformers.subject import TransformersSubject, max_length_of
from kvfuzz.subjects.transformers.tiny import DRAWN, fields_of, unknown_fields
from kvfuzz.subjects.transformers.weights import SeededModule

MOST_MODULES = 16
"""How many modules of a factory are kept, unless they are LARGE."""
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
    source = find_source(rest, decoder_alone=fixed.get("is_encoder_decoder") is False)
    attentions = _attentions(source, fixed)
    random = source.checkpoint is None
    drawn = ("float32", "float64") if options.twin else ("float32",)
    dtypes: tuple[str, ...] = (options.dtype,) if options.dtype else drawn
    module = _module_builder(source, attentions[0], options.device)
    choices = _choices(source, attentions, fixed)
    first = {word: values[0] for word, values in choices.items()} | dict(fixed)
    # Built once now, so that settings are refused here and not at the first case.
    simplest = module(dtypes[0], first)
    dtypes, remarks = _runnable(module, dtypes, first)
    others = [{**first, word: value} for word in DRAWN for value in choices.get(word, ())[1:]]
    models = [simplest, *(module(dtypes[0], settings) for settings in others)]
    able = reduce(merge, (_probe(source, one, fixed, dtypes[0]) for one in models))
    kinds = _kinds(source, able, fixed)

    def build(seed: int, dtype: str, config: Settings) -> TransformersSubject:
        settings = {**fixed, **config}
        kind = settings.get("cache", kinds[0])
        weights = seed if random else None
        return TransformersSubject(source, able, module(dtype, settings), kind, weights, dtype)

    if "cache" not in fixed:
        choices["cache"] = kinds
    narrow = NARROW if random and options.dtype is None and options.twin else ()
    remarks += [_not_offered(problem) for problem in able.problems if _UNKNOWN not in problem]
    own = {word: value for word, value in fixed.items() if word not in OWN_SETTINGS}
    if unknown := unknown_fields(source.config_class, own):
        remarks.append(f"this release does not know, and ignores: {', '.join(unknown)}")
    return Factory(source.name, build, dtypes, choices, dict(fixed), random, remarks, narrow)


def _runnable(
    module: Callable[[str, Settings], SeededModule], dtypes: tuple[str, ...], settings: Settings
) -> tuple[tuple[str, ...], list[str]]:
    """Returns the first of `dtypes`, and those others in which the model of `settings` runs; and
    why not in the rest, as remarks."""
    found, remarks = [dtypes[0]], []
    for dtype in dtypes[1:]:
        try:
            module(dtype, settings)
            found.append(dtype)
        except KvfuzzError as error:
            remarks.append(f"not run in {dtype}: {error}")
    return tuple(found), remarks


_UNKNOWN = f"{Unavailable.__name__}:"
"""Begins the error of a kind that the release, or the model's kind of layers, does not have."""


def _not_offered(problem: str) -> str:
    kind, _, error = problem.partition(": ")
    return f"not offered: cache {kind} ({error})"


def _module_builder(
    source: Source, attn: str, device: str
) -> Callable[[str, Settings], SeededModule]:
    """Returns a function from dtype and settings to a module. All seeds share one, since building
    takes longer than a case. The last ones are kept, unless they are large."""
    kept = OrderedDict[tuple[str, str, str], SeededModule]()

    def found(dtype: str, settings: Settings) -> SeededModule:
        own = {word: value for word, value in settings.items() if word not in OWN_SETTINGS}
        key = (settings.get("attn", attn), dtype, json.dumps(own, sort_keys=True))
        if key not in kept:
            _make_room(kept)
            kept[key] = build_module(source, own, key[0], dtype, device)
        kept.move_to_end(key)
        return kept[key]

    return found


def _make_room(kept: OrderedDict[Any, SeededModule]) -> None:
    """Drops the oldest of the modules before another is built, so that a large one is alone in
    memory."""
    dropped = 0
    while kept and (
        len(kept) >= MOST_MODULES or sum(module.bytes for module in kept.values()) >= LARGE
    ):
        dropped += kept.popitem(last=False)[1].bytes
    free_memory(dropped)


def _probe(source: Source, module: SeededModule, config: Settings, dtype: str) -> Abilities:
    """Finds out what a module can do, with the cache that was asked for or any. Raises UsageError
    if there is no such kind."""
    kind = config.get("cache")
    if kind is not None and kind not in CLASSES:
        raise UsageError(
            f"there is no cache {kind!r}{did_you_mean(str(kind), CLASSES)}: choose from "
            f"{', '.join(CLASSES)}"
        )
    model = module.with_seed(None)
    room = min(max_length_of(text_config(model.config), 0) or ROOM, MOST_SLOTS)
    with torch.no_grad(), promoted() if dtype == "float64" else nullcontext():
        return probe(source, model, room, kind)


def _kinds(source: Source, able: Abilities, config: Settings) -> tuple[str, ...]:
    """Returns the kinds of cache to draw from. Raises UsageError if the model does not take the one
    asked for, and InvalidSubject if it hands back none, whatever it is given."""
    if "cache" in config and not able.kinds:
        raise UsageError(f"{source.name} cannot have the cache {able.problems[0]}")
    if not able.kinds and all(NoCache.__name__ in problem for problem in able.problems):
        raise InvalidSubject(f"{source.name} keeps no cache: {able.problems[0]}")
    return able.kinds or ("own",)  # if all of them raise, let the cases show how


def _attentions(source: Source, config: Settings) -> tuple[str, ...]:
    """Returns the attentions to draw from. Raises UsageError if the one asked for is not among
    them."""
    offered = ATTENTIONS if supports_sdpa(source.model_class) else ATTENTIONS[:1]
    if "attn" not in config:
        return offered
    asked = config["attn"]
    if asked not in offered:
        raise UsageError(
            f"{source.name} has no attention {asked!r}{did_you_mean(str(asked), offered)}: choose "
            f"from {', '.join(offered)}"
        )
    return (asked,)


def _choices(
    source: Source, attentions: tuple[str, ...], config: Settings
) -> dict[str, tuple[Any, ...]]:
    """Returns the attentions and fields that a strategy may draw: those that the user has not
    set."""
    choices: dict[str, tuple[Any, ...]] = {"attn": attentions}
    if source.checkpoint is None:
        known = fields_of(source.config_class)
        choices |= {name: values for name, values in DRAWN.items() if name in known}
    return {name: values for name, values in choices.items() if name not in config}
