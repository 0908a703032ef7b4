"""A decoder with up to three bugs, each in a line of its own: a cache that refuses chunks, a crop
of one too few, and wrong positions after eight tokens."""

import torch

VOCAB, WIDTH, LONGEST = 30, 12, 24


class Right:
    """Attention over embeddings with learned positions; its `bugs` are none."""

    vocab_size, max_length = VOCAB, LONGEST
    bugs = ()

    def __init__(self, seed=0):
        generator = torch.Generator().manual_seed(seed)
        self.embedding = torch.randn(VOCAB, WIDTH, generator=generator)
        self.place = torch.randn(LONGEST, WIDTH, generator=generator)

    def attend(self, x, keys, held):
        later = torch.arange(keys.shape[1]) > torch.arange(held, held + x.shape[1])[:, None]
        scores = (x @ keys.mT / 4).masked_fill(later, -torch.inf)
        return (x + scores.softmax(-1) @ keys) @ self.embedding.T

    def uncached(self, tokens):
        x = self.embedding[tokens] + self.place[torch.arange(tokens.shape[1])]
        return self.attend(x, x, 0)

    def new_cache(self, batch):
        return torch.zeros(batch, 0, WIDTH)

    def cached(self, tokens, cache):
        held = cache.shape[1]
        if "chunk" in self.bugs and held and tokens.shape[1] > 1:
            raise ValueError("it takes one token at a time")
        positions = torch.arange(held, held + tokens.shape[1])
        if "place" in self.bugs and held >= 8:
            positions = positions - 1
        x = self.embedding[tokens] + self.place[positions]
        keys = torch.cat((cache, x), 1)
        return self.attend(x, keys, held), keys

    def crop(self, cache, count):
        if "crop" in self.bugs:
            count -= 1
        return cache[:, : max(0, cache.shape[1] - count)]


class Chunk(Right):
    bugs = ("chunk",)


class Place(Right):
    bugs = ("place",)


class Three(Right):
    bugs = ("chunk", "crop", "place")
