"""The registered decoder as a subject."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import lru_cache

import torch
from torch import Tensor

from kvfuzz.sites import Note, unnoticed
from kvfuzz.twin import signs
from kvfuzz.zoo import cached, uncached
from kvfuzz.zoo.cache import Cache, empty
from kvfuzz.zoo.config import DecoderConfig
from kvfuzz.zoo.weights import Parameters, drawn, views


class Decoder:
    """A registered decoder: two paths over one set of weights.

    `parameters` are the weights to use; by default they are drawn by `seed` in `dtype` on
    `device`.
    """

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
        self.model = parameters or drawn(self.config, seed, getattr(torch, dtype), device)
        self.vocab_size = self.config.vocab_size
        self.max_length: int | None = self.config.max_length
        self.width = self.config.width
        self._note: Note = unnoticed

    @property
    def device(self) -> torch.device:
        return self.model.flat.device

    def uncached(self, tokens: Tensor) -> Tensor:
        """Logits [batch, time, vocab] for all of `tokens` [batch, time], without a cache."""
        return uncached.logits(self.config, self.model.weights(), tokens, self._note)

    def new_cache(self, batch: int) -> Cache:
        """An empty cache for `batch` rows."""
        return empty(self.config, batch, self.model.flat.dtype, self.device)

    def cached(self, tokens: Tensor, cache: Cache) -> tuple[Tensor, Cache]:
        """Logits [batch, n, vocab] for `tokens` [batch, n] alone, and the grown cache."""
        answer = cached.logits(self.config, self.model.weights(), tokens, cache, self._note)
        return answer, cache

    def perturbed(self, tokens: Tensor, size: float, draws: Sequence[int | None]) -> Tensor:
        """Uncached float64 logits [draws, batch, time, vocab] of one set of weights for each of
        `draws`: as they are (None), or each multiplied by 1 + `size` or 1 - `size`."""
        flat = self.model.flat.detach().double()
        moved = _moves(len(flat), tuple(draws)).to(flat.device)
        sets = torch.addcmul(flat, flat, moved, value=size)
        return uncached.logits(self.config, views(self.config, sets), tokens, unnoticed)

    @contextmanager
    def trace(self, note: Note) -> Iterator[None]:
        """Inside this context both paths report their states to `note`."""
        before, self._note = self._note, note
        try:
            yield
        finally:
            self._note = before


@lru_cache(maxsize=64)
def _moves(count: int, draws: tuple[int | None, ...]) -> Tensor:
    """The signs of each of `draws` [draws, count]; noughts for None."""
    return torch.stack(
        [torch.zeros(count).double() if draw is None else signs(count, draw) for draw in draws]
    )
