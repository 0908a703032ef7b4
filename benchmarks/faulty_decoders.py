"""Decoders as a user would write them, each with a fault in the line that says so."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from benchmarks.plain_decoder import WIDTH, Entry, Layer, PlainDecoder


class FaultyLayer(Layer):
    """Its input grows on every decode, so that all states after it are wrong."""

    def forward(self, x: Tensor, entry: Entry | None) -> tuple[Tensor, Entry]:
        if entry is not None and x.shape[1] == 1:
            x = 1.01 * x  # the fault
        return super().forward(x, entry)


class FaultyDecoder(PlainDecoder):
    """A decoder written by hand, with the fault in its first layer."""

    def __init__(self, layers: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList(
            [FaultyLayer(WIDTH), *(Layer(WIDTH) for _ in range(layers - 1))]
        )

    def new_cache(self, _batch: int) -> list[Entry | None]:
        return [None] * len(self.layers)


class ThreeOperations:
    """The decoder of the README."""

    vocab_size, max_length = 50, None

    def __init__(self) -> None:
        self.embedding = torch.randn(50, WIDTH, generator=torch.Generator().manual_seed(0))

    def uncached(self, tokens: Tensor) -> Tensor:
        return self.embedding[tokens].cumsum(1) @ self.embedding.T

    def new_cache(self, batch: int) -> Tensor:
        return torch.zeros(batch, WIDTH)

    def cached(self, tokens: Tensor, cache: Tensor) -> tuple[Tensor, Tensor]:
        if tokens.shape[1] == 1:
            cache = cache * 0.99  # the fault
        states = cache[:, None] + self.embedding[tokens].cumsum(1)
        return states @ self.embedding.T, states[:, -1]
