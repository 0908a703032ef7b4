"""The built-in decoder, as a subject."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

from kvfuzz.subjects.perturb import signs
from kvfuzz.subjects.trace import Note, ignore_note
from kvfuzz.subjects.zoo import cached, operations, uncached
from kvfuzz.subjects.zoo.cache import Cache, empty
from kvfuzz.subjects.zoo.config import DecoderConfig
from kvfuzz.subjects.zoo.weights import Parameters, draw_parameters, views

SIDE_INPUTS = 5
"""The number of side inputs, where a layer reads them."""


class Decoder:
    """A built-in decoder: two paths over one set of weights.

    `parameters` are the weights to use; by default `seed` draws them, in `dtype` on `device`.
    `kvfuzz.subjects.zoo.operations` has what else can be done to a cache.
    """

    positions_from_mask = True

    def __init__(
        self,
        config: DecoderConfig | None = None,
        *,
        seed: int = 0,
        dtype: str = "float32",
        device: str = "cpu",
        parameters: Parameters | None = None,
    ) -> None:
        self.config = config or DecoderConfig()
        self.model = parameters or draw_parameters(self.config, seed, getattr(torch, dtype), device)
        self.vocab_size = self.config.vocab_size
        self.max_length: int | None = self.config.max_length
        self.width = self.config.width
        self.windows = self.config.windows
        self.cache_dtype = "int8" if self.config.cache == "int8" else None
        reads_sides = self.config.crosses(self.config.layers - 1)
        self.side_inputs = SIDE_INPUTS if reads_sides else None
        self._note: Note = ignore_note

    @property
    def device(self) -> torch.device:
        return self.model.flat.device

    def uncached(self, tokens: Tensor, *, sides: Tensor | None = None) -> Tensor:
        """Returns logits [batch, time, vocab] for all of `tokens` [batch, time], without a cache.
        `sides` [batch] are the numbers of the side inputs, by default 0."""
        return uncached.logits(self.config, self.model.weights(), tokens, self._note, sides)

    def new_cache(self, batch: int) -> Cache:
        """Returns an empty cache for `batch` rows."""
        return empty(self.config, batch, self.model.flat.dtype, self.device)

    def cached(
        self,
        tokens: Tensor,
        cache: Cache,
        *,
        mask: Tensor | None = None,
        positions: Tensor | None = None,
        lengths: Tensor | None = None,
        logits_to_keep: int = 0,
        parents: Tensor | None = None,
        sides: Tensor | None = None,
    ) -> tuple[Tensor, Cache]:
        """Returns logits [batch, n, vocab] for `tokens` [batch, n] alone, and the grown cache.

        `mask` bool [batch, slots + n] says which slots hold text, by default all, or the first
        `lengths` [batch] of each row. `positions` [batch, n] are those of the new slots in their
        rows, by default counted over the text. With `logits_to_keep` only the logits of the last so
        many of the n positions are returned. With `parents` [n] the new tokens are candidates:
        each follows another one, or for -1 the text; `accept` keeps one branch in each row. Raises
        NotImplementedError for candidates in a ring, whose entry is the position, and in a
        recurrent layer.
        """
        weights = self.model.weights()
        if parents is not None:
            if self.config.cache == "ring" or self.config.mix == "recurrent":
                raise NotImplementedError("two candidates for one position have no place here")
            cache.branches = cached.branches_of(parents)
            positions = (
                cached.candidate_positions(cache, tokens) if positions is None else positions
            )
        given_sides = torch.zeros_like(tokens[:, 0]) if sides is None else sides
        cached.take_sides(self.config, weights, cache, given_sides)
        if lengths is not None:
            mask = cached.text_of(cache, tokens, lengths)
        answer = cached.logits(self.config, weights, tokens, cache, self._note, mask, positions)
        if logits_to_keep:
            answer = cached.kept(cache, answer, logits_to_keep)
            self._note("logits", None, answer)
        return answer, cache

    def crop(self, cache: Cache, count: int) -> Cache:
        return operations.crop(cache, count)

    def accept(self, cache: Cache, candidates: Tensor) -> Cache:
        return operations.accept(cache, candidates)

    def rollback(self, cache: Cache, counts: Tensor) -> Cache:
        return operations.rollback(cache, counts)

    def join(self, cache: Cache, other: Cache) -> Cache:
        return operations.join(cache, other, self.device)

    def reorder(self, cache: Cache, rows: Tensor) -> Cache:
        return operations.reorder(cache, rows)

    def copy(self, cache: Cache) -> Cache:
        return operations.copy(cache)

    def save(self, cache: Cache) -> dict[str, Any]:
        return operations.save(cache)

    def load(self, state: dict[str, Any]) -> Cache:
        return operations.load(self.config, state)

    def reset(self, cache: Cache) -> Cache:
        return operations.reset(cache)

    def view(self, cache: Cache) -> operations.View:
        return operations.view(self.config, cache)

    def unused(self, cache: Cache) -> list[Tensor]:
        return operations.unused(cache)

    def perturbed(
        self,
        tokens: Tensor,
        size: float,
        draws: Sequence[int | None],
        sides: Tensor | None = None,
    ) -> Tensor:
        """Returns uncached float64 logits [draws, batch, time, vocab], for a set of weights for
        each of `draws`: as they are (None), or each multiplied by 1 + `size` or 1 - `size`."""
        flat = self.model.flat.detach().double()
        sign = _signs_of(len(flat), tuple(draws)).to(flat.device)
        sets = torch.addcmul(flat, flat, sign, value=size)
        weights = views(self.config, sets)
        return uncached.logits(self.config, weights, tokens, ignore_note, sides)

    @contextmanager
    def trace(self, note: Note) -> Iterator[None]:
        """Inside this context both paths report their states to `note`."""
        before, self._note = self._note, note
        try:
            yield
        finally:
            self._note = before


@lru_cache(maxsize=64)
def _signs_of(count: int, draws: tuple[int | None, ...]) -> Tensor:
    """Returns the signs of each of `draws` [draws, count]; zeros for None."""
    return torch.stack(
        [torch.zeros(count).double() if draw is None else signs(count, draw) for draw in draws]
    )
