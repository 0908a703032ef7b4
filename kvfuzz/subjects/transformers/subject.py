"""Puts a language model of the transformers library behind the protocol of a subject."""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from kvfuzz.case.case import KEEP
from kvfuzz.errors import InvalidSubject
from kvfuzz.subjects.float64 import Promotion, Twin, promoted
from kvfuzz.subjects.transformers import caches
from kvfuzz.subjects.transformers.build import text_config
from kvfuzz.subjects.transformers.cache_kinds import (
    MOST_SLOTS,
    QUANTISED_BOUND,
    QUANTISED_DTYPE,
    Unavailable,
)
from kvfuzz.subjects.transformers.caches import CacheState
from kvfuzz.subjects.transformers.call import NoCache, begin, choose_encodings, draw_encodings
from kvfuzz.subjects.transformers.generate import generate
from kvfuzz.subjects.transformers.private import eager_experts
from kvfuzz.subjects.transformers.probe import ROOM, Abilities, layer_count, needs_slots
from kvfuzz.subjects.transformers.source import Source
from kvfuzz.subjects.transformers.weights import SeededModule


class TransformersSubject:
    """A language model behind the protocol of `kvfuzz.subjects.protocol.Subject`.

    The model gets tokens and cache, and a mask or positions if these are given; the rest is left to
    it. Subjects of other seeds may share the module, so `model` first fills it with the weights of
    this one. The model decides which optional methods there are.
    """

    cached: Callable[..., tuple[Tensor, CacheState]]

    def __init__(
        self,
        source: Source,
        able: Abilities,
        module: SeededModule,
        kind: str,
        seed: int | None,
        dtype: str,
    ) -> None:
        self._source, self._able, self._module = source, able, module
        self._kind, self._seed = kind, seed
        self._in_float64 = dtype == "float64"
        config = text_config(self.model.config)
        self.vocab_size: int = config.vocab_size
        self.max_length: int | None = max_length_of(config, able.forward.offset)
        self.width: int | None = getattr(config, "hidden_size", None)
        self.device: torch.device = next(self.model.parameters()).device
        self._room = min(self.max_length or ROOM, MOST_SLOTS)
        self._encoded = draw_encodings(self.model, self.vocab_size, seed or 0)
        if kind == "quantised":
            self.cache_dtype, self.cache_bound = self._quantised_dtype(), QUANTISED_BOUND
        self.positions_from_mask = able.padding.from_mask
        self.cached = _with_arguments(self._cached, able)
        self._add_offers()

    def _add_offers(self) -> None:
        """Adds the optional methods that some kind of cache of this model has."""
        methods: dict[str, Callable[..., Any]] = {
            "crop": caches.crop,
            "reorder": self._reorder,
            "copy": copy.deepcopy,
            "save": caches.save,
            "reset": caches.reset,
            "view": caches.view,
            "unused": caches.unused,
        }
        for word in self._able.offers:
            setattr(self, word, methods[word])
        if "save" in self._able.offers:
            self.load = _load

    @property
    def model(self) -> Any:
        """The torch module, holding the weights of this subject."""
        return self._module.with_seed(self._seed)

    @cached_property
    def twin(self) -> Twin:
        """The float64 twin of this subject. It runs experts one by one, since the kernels that
        group them have no float64."""
        return _Twin(self, self._in_float64)

    @property
    def windows(self) -> list[int | None]:
        """How many entries each layer must keep; None for all."""
        known = self._module.windows
        if self._kind not in known:
            config = text_config(self.model.config)
            # Some layers of a cache exist only after the first call.
            token = torch.zeros(1, 1, dtype=torch.int64, device=self.device)
            with torch.no_grad():
                _, state = self._cached(token, self.new_cache(1))
            known[self._kind] = caches.windows(state.own, config, layer_count(config))
        return known[self._kind]

    def uncached(self, tokens: Tensor) -> Tensor:
        """Returns logits [batch, time, vocab] for all of `tokens` [batch, time], without a
        cache."""
        encoded = choose_encodings(self._encoded, tokens)
        with self._promotion():
            return self._able.forward.uncached(self.model, tokens, encoded)

    def new_cache(self, batch: int) -> CacheState:
        """Returns an empty cache of the drawn kind for `batch` rows."""
        try:
            with self._promotion():
                return self._able.new_cache(self._source, self.model, self._kind, batch, self._room)
        except Unavailable as error:
            raise NotImplementedError(str(error)) from None

    def _cached(
        self,
        tokens: Tensor,
        cache: CacheState,
        *,
        mask: Tensor | None = None,
        positions: Tensor | None = None,
        logits_to_keep: int = 0,
    ) -> tuple[Tensor, CacheState]:
        """Returns logits [batch, time, vocab] for `tokens` alone, or for the last `logits_to_keep`
        of them, and the cache to pass next time.

        Raises InvalidSubject if the model hands back no cache: every call would start anew.
        """
        if cache.room is not None and cache.slots + tokens.shape[1] > cache.room:
            raise NotImplementedError(f"a preallocated cache of {cache.room} slots is full")
        if mask is not None:
            self._able.padding.refuse(mask)
        cache = begin(cache, self._encoded, tokens, mask)
        give_slots = needs_slots(self._kind, self._able.own)
        forward = self._able.forward
        kept = {forward.keep: logits_to_keep} if forward.keep and logits_to_keep else {}
        try:
            with self._promotion():
                return forward.cached(
                    self.model, tokens, cache, mask, positions, give_slots, **kept
                )
        except NoCache as error:
            raise InvalidSubject(f"{self._source.name} {error}") from None

    def generate(
        self, tokens: Tensor, length: int, beams: int, cached: bool
    ) -> tuple[Tensor, Tensor | None]:
        """Returns the `length` tokens [batch, length] by which the library's `generate` continues
        `tokens`, with its cache or without, and the logits [batch, length, vocab] that chose them,
        None in releases that do not return them. `beams` is the width of the search, 1 for a greedy
        one."""
        encoded = choose_encodings(self._encoded, tokens)
        kind = self._kind if cached else None
        with self._promotion():
            return generate(self.model, self._able.forward, tokens, encoded, length, beams, kind)

    def _quantised_dtype(self) -> torch.dtype:
        """The dtype that a quantised cache rounds to, or one as coarse."""
        try:
            layer = next(iter(caches.layers_of(self.new_cache(1).own)))
        except NotImplementedError:
            return QUANTISED_DTYPE
        found = getattr(layer, "fp8_dtype", QUANTISED_DTYPE)
        return found if isinstance(found, torch.dtype) else QUANTISED_DTYPE

    def _reorder(self, cache: CacheState, rows: Tensor) -> CacheState:
        return caches.reorder(self.model, cache, rows)

    def _promotion(self) -> AbstractContextManager[object]:
        return promoted() if self._in_float64 else nullcontext()


class _Twin(Twin):
    def __init__(self, subject: TransformersSubject, in_float64: bool) -> None:
        super().__init__(subject, always=in_float64)
        self._subject = subject
        self._config = text_config(subject.model.config)

    @contextmanager
    def running(self, promoting: bool = True) -> Iterator[Promotion]:
        self._subject.model  # noqa: B018  # fills the shared module with this subject's weights
        with eager_experts(self._config), super().running(promoting) as promotion:
            yield promotion


def _with_arguments(method: Callable[..., Any], able: Abilities) -> Callable[..., Any]:
    """Returns `method` with a signature that has only those of its optional arguments that the
    model takes: kvfuzz reads from it what to draw."""
    taken = {
        "mask": able.padding.offered,
        "positions": able.forward.positions is not None,
        KEEP: able.forward.keep is not None,
    }
    signature = inspect.signature(method)
    kept = [p for p in signature.parameters.values() if taken.get(p.name, True)]

    def cached(tokens: Tensor, cache: CacheState, **given: Tensor | None) -> Any:
        return method(tokens, cache, **given)

    cached.__signature__ = signature.replace(parameters=kept)  # type: ignore[attr-defined]
    return cached


def _load(state: CacheState) -> CacheState:
    """Returns what `save` returned: the cache itself."""
    return state


def max_length_of(config: Any, offset: int) -> int | None:
    """Returns the most tokens that a model with `config` takes; None if it does not say."""
    places = getattr(config, "max_position_embeddings", None)
    if not isinstance(places, int) or places <= offset:
        return None
    rope = getattr(config, "rope_parameters", None) or getattr(config, "rope_scaling", None)
    if isinstance(rope, dict) and "dynamic" in (rope.get("rope_type"), rope.get("type")):
        # Dynamic scaling is made to go past the length that the model was trained for.
        places = int(places * rope.get("factor", 1))
    return places - offset
