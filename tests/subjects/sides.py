"""Decoders whose rows have side inputs: states to attend to, or the number of an adapter."""

import torch
import torch.nn.functional as F
from torch import nn

VOCAB, WIDTH, FRAMES = 23, 8, 4


class Captions(nn.Module):
    """A running sum of embeddings, which attends to the states of an image. The cache is (sum,
    keys, values, tokens so far of each row)."""

    vocab_size, max_length, side_inputs = VOCAB, 40, 6

    def __init__(self, seed=0):
        super().__init__()
        torch.manual_seed(seed)
        self.token = nn.Embedding(VOCAB, WIDTH)
        self.images = nn.Parameter(torch.randn(self.side_inputs, FRAMES, WIDTH))
        self.key, self.value = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)

    def run(self, tokens, before, keys, values):
        states = before[:, None] + self.token(tokens).cumsum(1)
        normed = F.layer_norm(states, (WIDTH,))
        seen = F.scaled_dot_product_attention(normed, keys, values)
        return (normed + seen) @ self.token.weight.T, states[:, -1]

    def entries(self, sides):
        return self.key(self.images[sides]), self.value(self.images[sides])

    def uncached(self, tokens, *, sides=None):
        nothing = self.token.weight.new_zeros(len(tokens), WIDTH)
        return self.run(tokens, nothing, *self.entries(sides))[0]

    def new_cache(self, batch):
        return None

    def cached(self, tokens, cache, *, sides=None):
        if cache is None:
            nothing = self.token.weight.new_zeros(len(tokens), WIDTH)
            cache = (nothing, *self.kept(sides))
        state, keys, values = cache
        logits, state = self.run(tokens, state, keys, values)
        return logits, (state, keys, values)

    def kept(self, sides):
        return self.entries(sides)

    def reorder(self, cache, rows):
        return tuple(x[rows] for x in cache)

    def reset(self, cache):
        return None

    def copy(self, cache):
        return tuple(x.clone() for x in cache)


class ReadsTheFirstImage(Captions):
    def kept(self, sides):
        return self.entries(sides[:1].expand_as(sides))  # fault


class LeavesImagesBehind(Captions):
    def reorder(self, cache, rows):
        own = torch.arange(len(rows)) % len(cache[0])
        return cache[0][rows], cache[1][own], cache[2][own]  # fault


class KeepsTheImageOfTheLastCache(Captions):
    """Computes the entries once for each number of rows, as a model that never forgets does."""

    def kept(self, sides):
        memo = self.__dict__.setdefault("memo", {})
        if len(sides) not in memo:
            memo[len(sides)] = self.entries(sides)
        return memo[len(sides)]  # fault


class KeepsTheImageThroughAReset(Captions):
    def cached(self, tokens, cache, *, sides=None):
        if cache is not None and cache[0] is None:
            cache = (self.token.weight.new_zeros(len(tokens), WIDTH), *cache[1:])
        return super().cached(tokens, cache, sides=sides)

    def reset(self, cache):
        return (None, *cache[1:])  # fault


class Adapters(Captions):
    """Scales the embeddings by the adapter of each row, which every call gets."""

    def uncached(self, tokens, *, sides=None):
        scaled = self.token(tokens).cumsum(1) * self.images[sides][:, :1]
        return F.layer_norm(scaled, (WIDTH,)) @ self.token.weight.T

    def cached(self, tokens, cache, *, sides=None):
        before = self.token.weight.new_zeros(len(tokens), WIDTH) if cache is None else cache[0]
        states = before[:, None] + self.token(tokens).cumsum(1)
        scaled = F.layer_norm(states * self.images[self.chosen(sides)][:, :1], (WIDTH,))
        return scaled @ self.token.weight.T, (states[:, -1],)

    def chosen(self, sides):
        return sides


class MixesAdaptersUp(Adapters):
    def chosen(self, sides):
        return sides.roll(1)  # fault


class Searches(Captions):
    def generate(self, tokens, length, beams, cached):
        raise AssertionError("a search gets no side inputs")
