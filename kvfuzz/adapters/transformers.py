"""Decoders of the transformers library: tiny ones of any architecture, and saved checkpoints.

What differs between releases (the name of the cache argument, how a cache is built, which
attention a model has) is read off signatures and classes, not off the release number.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import cached_property, lru_cache
from typing import Any

import torch
from torch import Tensor

from kvfuzz.adapters.modules import built
from kvfuzz.adapters.source import CACHE_NAMES, Source, source_of
from kvfuzz.adapters.tiny import DRAWN, fields_of
from kvfuzz.adapters.weights import Drawn
from kvfuzz.errors import InvalidSubject, UsageError
from kvfuzz.lanes import Promotion, promoted
from kvfuzz.loading import Options
from kvfuzz.near import near
from kvfuzz.subject import Factory
from kvfuzz.twin import Twin

ATTENTIONS = ("eager", "sdpa")


def factory(rest: str, options: Options) -> Factory:
    """`transformers:MODEL_TYPE` draws tiny random models; `transformers:DIRECTORY` loads one.

    `options.config` sets `attn` and the fields of the model's configuration. Raises
    InvalidSubject for what is not a causal language model with a cache, UsageError for a setting
    that the model does not have or that transformers refuses.
    """
    source = source_of(rest)
    attentions = _attentions(source, options.config)
    random = source.checkpoint is None

    # One module for all seeds: a fresh one takes longer than the case that it is for.
    @lru_cache(maxsize=16)
    def module(attn: str, dtype: str, settings: str) -> Drawn:
        return built(source, json.loads(settings), attn, dtype, options.device)

    def build(seed: int, dtype: str, config: Mapping[str, Any]) -> TransformersSubject:
        settings = {**options.config, **config}
        attn = settings.pop("attn", attentions[0])
        drawn = module(attn, dtype, json.dumps(settings, sort_keys=True))
        return TransformersSubject(source, drawn, seed if random else None, dtype)

    dtypes = (options.dtype,) if options.dtype else ("float32", "float64")
    choices = _choices(source, attentions, options.config)
    made = Factory(source.name, build, dtypes, choices, dict(options.config), seeded=random)
    # Built once now, so that settings are refused at the door and not at the first case.
    for dtype in dtypes:
        build(0, dtype, made.first_config())
    return made


class TransformersSubject:
    """A causal language model behind the protocol of `kvfuzz.subject.Subject`.

    Nothing but tokens and cache is passed: masks and positions are left to the model. Subjects
    of other seeds may share the module, so `model` fills it with this one's weights first.
    """

    def __init__(self, source: Source, drawn: Drawn, seed: int | None, dtype: str) -> None:
        self._source = source
        self._drawn = drawn
        self._seed = seed
        self._in_double = dtype == "float64"
        config = self.model.config.get_text_config(decoder=True)
        self.vocab_size: int = config.vocab_size
        self.max_length: int | None = getattr(config, "max_position_embeddings", None)
        self.width: int = config.hidden_size
        self.device: torch.device = next(self.model.parameters()).device

    @property
    def model(self) -> Any:
        """The torch module, holding the weights of this subject."""
        return self._drawn.at(self._seed)

    @cached_property
    def twin(self) -> Twin:
        """The float64 twin of this subject. Its experts run one by one, since the kernels that
        group them have no float64."""
        return _Twin(self, self._in_double)

    def uncached(self, tokens: Tensor) -> Tensor:
        """Logits [batch, time, vocab] for all of `tokens` [batch, time], without a cache."""
        with self._lane():
            logits: Tensor = self.model(input_ids=tokens, use_cache=False).logits
        return logits

    def new_cache(self, batch: int) -> Any:  # noqa: ARG002
        """An empty cache, for any number of rows; None where the model makes its own."""
        if self._source.cache_name not in ("cache", "past_key_values"):
            return None
        with self._lane():
            # Without the configuration a cache cannot know which of its layers have a window.
            return self._source.library.DynamicCache(config=self.model.config)

    def cached(self, tokens: Tensor, cache: Any) -> tuple[Tensor, Any]:
        """Logits [batch, time, vocab] for `tokens` alone, and the cache to pass next time.

        Raises InvalidSubject if the model hands back no cache: every call would start anew.
        """
        given = {self._source.cache_name: cache}
        with self._lane():
            output = self.model(input_ids=tokens, use_cache=True, **given)
        for name in CACHE_NAMES:
            if output.get(name) is not None:
                return output.logits, output[name]
        raise InvalidSubject(
            f"{self._source.name} returned no cache: its output holds {', '.join(output)}"
        )

    def _lane(self) -> AbstractContextManager[object]:
        return promoted() if self._in_double else nullcontext()


class _Twin(Twin):
    def __init__(self, subject: TransformersSubject, in_double: bool) -> None:
        super().__init__(subject, always=in_double)
        self._subject = subject
        self._config = subject.model.config.get_text_config(decoder=True)

    @contextmanager
    def running(self, promoting: bool = True) -> Iterator[Promotion]:
        self._subject.model  # noqa: B018  # holds the weights of this subject from now on
        before = getattr(self._config, "_experts_implementation", None)
        if before is not None:
            self._config._experts_implementation = "eager"
        try:
            with super().running(promoting) as promotion:
                yield promotion
        finally:
            if before is not None:
                self._config._experts_implementation = before


def _attentions(source: Source, config: Mapping[str, Any]) -> tuple[str, ...]:
    """The attentions to draw from. Raises UsageError if the one asked for is not among them."""
    has_sdpa = getattr(source.model_class, "_supports_sdpa", False)
    offered = ATTENTIONS if has_sdpa else ATTENTIONS[:1]
    if "attn" not in config:
        return offered
    asked = config["attn"]
    if asked not in offered:
        raise UsageError(
            f"{source.name} has no attention {asked!r}{near(str(asked), offered)}: choose from "
            f"{', '.join(offered)}"
        )
    return (asked,)


def _choices(
    source: Source, attentions: tuple[str, ...], config: Mapping[str, Any]
) -> dict[str, tuple[Any, ...]]:
    """What a strategy may draw, which is what the user has not set."""
    choices: dict[str, tuple[Any, ...]] = {"attn": attentions}
    if source.checkpoint is None:
        known = fields_of(source.config_class)
        choices |= {name: values for name, values in DRAWN.items() if name in known}
    return {name: values for name, values in choices.items() if name not in config}
