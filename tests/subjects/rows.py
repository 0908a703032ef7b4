"""Decoders whose rows have lengths of their own: a buffer for each row, and how much it holds."""

import torch
import torch.nn.functional as F
from torch import nn

VOCAB, WIDTH, ROOM = 29, 8, 40


class Rows(nn.Module):
    """One layer of attention. The cache is (keys, values, lengths), filled from the left."""

    vocab_size, max_length = VOCAB, ROOM

    def __init__(self, seed=0):
        super().__init__()
        torch.manual_seed(seed)
        self.token, self.place = nn.Embedding(VOCAB, WIDTH), nn.Embedding(ROOM, WIDTH)
        self.project, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, VOCAB)

    def uncached(self, tokens):
        return self.cached(tokens, self.new_cache(len(tokens)))[0]

    def new_cache(self, batch):
        like = self.token.weight
        empty = like.new_zeros(batch, ROOM, WIDTH)
        return empty, empty.clone(), torch.zeros(batch, dtype=torch.int64)

    def cached(self, tokens, cache):
        return self.run(tokens, cache, torch.full((len(tokens),), tokens.shape[1]))

    def run(self, tokens, cache, counts):
        """Feeds the first `counts` of each row of `tokens`."""
        keys, values, lengths = cache
        columns = torch.arange(tokens.shape[1])
        index = lengths[:, None] + columns
        text = columns < counts[:, None]
        x = self.token(tokens) + self.place(self.positions(index, lengths).clamp(max=ROOM - 1))
        query, key, value = self.project(x).chunk(3, -1)
        keys, values = keys.clone(), values.clone()
        row, column = text.nonzero(as_tuple=True)
        keys[row, index[row, column]] = key[row, column]
        values[row, index[row, column]] = value[row, column]
        seen = self.seen(index, torch.arange(ROOM))
        x = x + F.scaled_dot_product_attention(query, keys, values, attn_mask=seen)
        return self.out(x), (keys, values, lengths + counts)

    def positions(self, index, lengths):
        return index

    def seen(self, index, slots):
        return slots <= index[..., None]

    def rollback(self, cache, counts):
        keys, values, lengths = cache
        return keys, values, (lengths - counts).clamp_min(0)

    def copy(self, cache):
        return tuple(x.clone() for x in cache)

    def reorder(self, cache, rows):
        return tuple(x[rows] for x in cache)


class RollsAllBackAlike(Rows):
    def rollback(self, cache, counts):
        return super().rollback(cache, counts.max().expand_as(counts))  # fault


class RollsOneTooFewBack(Rows):
    def rollback(self, cache, counts):
        return super().rollback(cache, (counts - 1).clamp_min(0))  # fault


class ContinuesAtTheLongest(Rows):
    def positions(self, index, lengths):
        return index + (lengths.max() - lengths)[:, None]  # fault


class SeesWhatWasDropped(Rows):
    """A row sees as far as the longest one does."""

    def seen(self, index, slots):
        return slots <= index.max(0).values[:, None] + 0 * index[..., None]  # fault


class RollbackRefused(Rows):
    def rollback(self, cache, counts):
        raise NotImplementedError("not here")
