"""A language model of the transformers library behind the protocol of a subject."""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from kvfuzz.errors import InvalidSubject
from kvfuzz.subjects.float64 import Promotion, Twin, promoted
from kvfuzz.subjects.transformers import tf_operations as operations
from kvfuzz.subjects.transformers.build import text_config
from kvfuzz.subjects.transformers.caches import (
    MOST_SLOTS,
    QUANTISED_BOUND,
    QUANTISED_DTYPE,
    Unavailable,
)
from kvfuzz.subjects.transformers.call import NoCache
from kvfuzz.subjects.transformers.generate import generated
from kvfuzz.subjects.transformers.probe import ROOM, Abilities, places
from kvfuzz.subjects.transformers.source import Source
from kvfuzz.subjects.transformers.tf_encoder import begun, chosen, drawn
from kvfuzz.subjects.transformers.tf_held import Held, layers_of
from kvfuzz.subjects.transformers.weights import Drawn


class TransformersSubject:
    """A language model behind the protocol of `kvfuzz.subjects.protocol.Subject`.

    Nothing but tokens and cache is passed, unless a mask or positions are given: the rest is left
    to the model. Subjects of other seeds may share the module, so `model` fills it with this one's
    weights first. Which of the optional methods there are depends on the model.
    """

    cached: Callable[..., tuple[Tensor, Held]]

    def __init__(
        self,
        source: Source,
        able: Abilities,
        drawn_module: Drawn,
        kind: str,
        seed: int | None,
        dtype: str,
    ) -> None:
        self._source, self._able, self._drawn = source, able, drawn_module
        self._kind, self._seed = kind, seed
        self._in_double = dtype == "float64"
        config = text_config(self.model.config)
        self.vocab_size: int = config.vocab_size
        self.max_length: int | None = longest(config, able.call.offset)
        self.width: int = config.hidden_size
        self.device: torch.device = next(self.model.parameters()).device
        self._room = min(self.max_length or ROOM, MOST_SLOTS)
        self._encoded = drawn(self.model, self.vocab_size, seed or 0)
        if kind == "quantised":
            self.cache_dtype, self.cache_bound = self._rounds_to(), QUANTISED_BOUND
        self.positions_from_mask = able.padding.from_mask
        self.cached = _taking(self._cached, able)
        self._offer()

    def _offer(self) -> None:
        """Take the optional methods that some kind of cache of this model has."""
        methods: dict[str, Callable[..., Any]] = {
            "crop": operations.crop,
            "reorder": self._reorder,
            "copy": copy.deepcopy,
            "save": operations.save,
            "reset": operations.reset,
            "view": operations.view,
            "unused": operations.unused,
        }
        for word in self._able.offers:
            setattr(self, word, methods[word])
        if "save" in self._able.offers:
            self.load = _loaded

    @property
    def model(self) -> Any:
        """The torch module, holding the weights of this subject."""
        return self._drawn.at(self._seed)

    @cached_property
    def twin(self) -> Twin:
        """The float64 twin of this subject. Its experts run one by one, since the kernels that
        group them have no float64."""
        return _Twin(self, self._in_double)

    @property
    def windows(self) -> list[int | None]:
        """How many entries each layer must keep; None for all."""
        known = self._drawn.windows
        if self._kind not in known:
            config = text_config(self.model.config)
            # Some layers are there only once they have something to hold.
            token = torch.zeros(1, 1, dtype=torch.int64, device=self.device)
            with torch.no_grad():
                _, held = self._cached(token, self.new_cache(1))
            known[self._kind] = operations.windows(held.own, config, config.num_hidden_layers)
        return known[self._kind]

    def uncached(self, tokens: Tensor) -> Tensor:
        """Logits [batch, time, vocab] for all of `tokens` [batch, time], without a cache."""
        encoded = chosen(self._encoded, tokens)
        with self._lane():
            return self._able.call.uncached(self.model, tokens, encoded)

    def new_cache(self, batch: int) -> Held:
        """An empty cache of the drawn kind for `batch` rows."""
        try:
            with self._lane():
                return self._able.new(self._source, self.model, self._kind, batch, self._room)
        except Unavailable as error:
            raise NotImplementedError(str(error)) from None

    def _cached(
        self,
        tokens: Tensor,
        cache: Held,
        *,
        mask: Tensor | None = None,
        positions: Tensor | None = None,
    ) -> tuple[Tensor, Held]:
        """Logits [batch, time, vocab] for `tokens` alone, and the cache to pass next time.

        Raises InvalidSubject if the model hands back no cache: every call would start anew.
        """
        if cache.room is not None and cache.slots + tokens.shape[1] > cache.room:
            raise NotImplementedError(f"a preallocated cache of {cache.room} slots is full")
        if mask is not None:
            self._able.padding.refuse(mask)
        cache = begun(cache, self._encoded, tokens, mask)
        place = places(self._kind, self._able.own)
        try:
            with self._lane():
                return self._able.call.cached(self.model, tokens, cache, mask, positions, place)
        except NoCache as error:
            raise InvalidSubject(f"{self._source.name} {error}") from None

    def generate(
        self, tokens: Tensor, length: int, beams: int, cached: bool
    ) -> tuple[Tensor, Tensor | None]:
        """The `length` tokens [batch, length] that the library's `generate` continues `tokens`
        with, by beam search over so many `beams` (1: greedily), with its cache or without; and the
        logits [batch, length, vocab] behind them, None in releases that do not tell."""
        encoded = chosen(self._encoded, tokens)
        kind = self._kind if cached else None
        with self._lane():
            return generated(self.model, self._able.call, tokens, encoded, length, beams, kind)

    def _rounds_to(self) -> torch.dtype:
        """The dtype that a quantised cache rounds to, or one as coarse."""
        try:
            layer = next(iter(layers_of(self.new_cache(1).own)))
        except NotImplementedError:
            return QUANTISED_DTYPE
        found = getattr(layer, "fp8_dtype", QUANTISED_DTYPE)
        return found if isinstance(found, torch.dtype) else QUANTISED_DTYPE

    def _reorder(self, cache: Held, rows: Tensor) -> Held:
        return operations.reorder(self.model, cache, rows)

    def _lane(self) -> AbstractContextManager[object]:
        return promoted() if self._in_double else nullcontext()


class _Twin(Twin):
    def __init__(self, subject: TransformersSubject, in_double: bool) -> None:
        super().__init__(subject, always=in_double)
        self._subject = subject
        self._config = text_config(subject.model.config)

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


def _taking(method: Callable[..., Any], able: Abilities) -> Callable[..., Any]:
    """`method` with those optional arguments that a model with such abilities takes."""
    taken = {
        "mask": able.padding.offered,
        "positions": able.call.positions is not None,
    }
    signature = inspect.signature(method)
    kept = [p for p in signature.parameters.values() if taken.get(p.name, True)]

    def cached(tokens: Tensor, cache: Held, **given: Tensor | None) -> Any:
        return method(tokens, cache, **given)

    cached.__signature__ = signature.replace(parameters=kept)  # type: ignore[attr-defined]
    return cached


def _loaded(state: Held) -> Held:
    """What was saved is the cache itself."""
    return state


def longest(config: Any, offset: int) -> int | None:
    """The most tokens that a model with that configuration takes; None if it does not say."""
    places = getattr(config, "max_position_embeddings", None)
    if not isinstance(places, int) or places <= offset:
        return None
    rope = getattr(config, "rope_parameters", None) or getattr(config, "rope_scaling", None)
    if isinstance(rope, dict) and "dynamic" in (rope.get("rope_type"), rope.get("type")):
        # Made to go on past the length that the model was trained for.
        places = int(places * rope.get("factor", 1))
    return places - offset
