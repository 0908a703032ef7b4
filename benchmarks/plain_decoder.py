"""A decoder as a user would write it: torch's own modules, and the three methods of a subject."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

VOCAB, WIDTH, HEADS, LAYERS, LONGEST = 100, 64, 4, 4, 512
Entry = tuple[Tensor, Tensor]


class Layer(nn.Module):
    """Attention and a feed-forward part, each after a norm."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm, self.qkv = nn.LayerNorm(width), nn.Linear(width, 3 * width)
        self.out, self.second_norm = nn.Linear(width, width), nn.LayerNorm(width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor, entry: Entry | None) -> tuple[Tensor, Entry]:
        query, key, value = (
            part.unflatten(-1, (HEADS, -1)).transpose(1, 2)
            for part in self.qkv(self.norm(x)).chunk(3, -1)
        )
        if entry is not None:
            key, value = torch.cat((entry[0], key), 2), torch.cat((entry[1], value), 2)
        scores = query @ key.transpose(2, 3) / math.sqrt(query.shape[-1])
        size, total = scores.shape[-2:]
        hidden = torch.ones(size, total, dtype=torch.bool, device=x.device).triu(total - size + 1)
        weights = scores.masked_fill(hidden, -torch.inf).softmax(-1)
        x = x + self.out((weights @ value).transpose(1, 2).flatten(2))
        x = x + self.down(nn.functional.gelu(self.up(self.second_norm(x))))
        return x, (key, value)


class PlainDecoder(nn.Module):
    """Four layers with learned positions; the cache is a list of keys and values."""

    vocab_size, max_length, width = VOCAB, LONGEST, WIDTH

    def __init__(self, seed: int = 0) -> None:
        super().__init__()
        torch.manual_seed(seed)
        width = self.width
        self.tokens, self.positions = nn.Embedding(VOCAB, width), nn.Embedding(LONGEST, width)
        self.layers = nn.ModuleList(Layer(width) for _ in range(LAYERS))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, VOCAB)

    def uncached(self, tokens: Tensor) -> Tensor:
        return self.cached(tokens, self.new_cache(len(tokens)))[0]

    def new_cache(self, _batch: int) -> list[Entry | None]:
        return [None] * LAYERS

    def cached(
        self, tokens: Tensor, cache: list[Entry | None]
    ) -> tuple[Tensor, list[Entry | None]]:
        past = 0 if cache[0] is None else cache[0][0].shape[2]
        x = self.tokens(tokens) + self.positions.weight[self.columns(past, tokens.shape[1])]
        entries: list[Entry | None] = []
        for layer, entry in zip(self.layers, cache, strict=True):
            x, new = layer(x, entry)
            entries.append(new)
        return self.head(self.norm(x)), entries

    def columns(self, past: int, new: int) -> slice:
        """Returns the positions of `new` tokens after `past` ones."""
        return slice(past, past + new)


class WideDecoder(PlainDecoder):
    """The same with 200 MB of weights."""

    width = 1024


class PlantedDecoder(PlainDecoder):
    """The same with a bug: a decode gives its token the position of the one before."""

    def columns(self, past: int, new: int) -> slice:
        return super().columns(past - 1 if new == 1 and past else past, new)
