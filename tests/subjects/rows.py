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


class Ragged(Rows):
    """Takes another number of tokens for each row in one call."""

    def uncached(self, tokens):
        return self.run(
            tokens, self.new_cache(len(tokens)), torch.full((len(tokens),), tokens.shape[1])
        )[0]

    def cached(self, tokens, cache, *, lengths=None):
        whole = torch.full((len(tokens),), tokens.shape[1])
        return self.run(tokens, cache, whole if lengths is None else self.counts(lengths, whole))

    def counts(self, lengths, whole):
        return lengths


class TakesWhatFillsUp(Ragged):
    def counts(self, lengths, whole):
        return whole  # fault


class TakesTheLengthsOfOtherRows(Ragged):
    def counts(self, lengths, whole):
        return lengths.flip(0)  # fault


class LosesAnIdleRow(Ragged):
    """A row that takes no token takes one."""

    def counts(self, lengths, whole):
        return lengths.clamp_min(1)  # fault


class StoresWhatFillsUp(Ragged):
    """What fills a short row up is stored behind its text, and in sight of the other calls."""

    def run(self, tokens, cache, counts):
        logits, (keys, values, _) = super().run(
            tokens, cache, torch.full_like(counts, tokens.shape[1])
        )
        return logits, (keys, values, cache[2] + counts)

    def seen(self, index, slots):
        return slots <= index.max(0).values[:, None] + 0 * index[..., None]  # fault


class RefusesIdleRows(Ragged):
    def counts(self, lengths, whole):
        if bool((lengths == 0).any()):
            raise NotImplementedError("every row takes a token")
        return lengths


class LastOfEachRow(Ragged):
    """Returns the logits of the last token of each row alone."""

    last_only = True

    def cached(self, tokens, cache, *, lengths=None):
        logits, cache = super().cached(tokens, cache, lengths=lengths)
        if lengths is None:
            return logits[:, -1:], cache
        last = self.last(lengths, tokens.shape[1])
        return logits[torch.arange(len(tokens)), last][:, None], cache

    def last(self, lengths, count):
        return (lengths - 1).clamp_min(0)


class LastColumn(LastOfEachRow):
    def last(self, lengths, count):
        return torch.full_like(lengths, count - 1)  # fault


class Joins(Rows):
    """Takes the rows of another cache in."""

    def join(self, cache, other):
        return tuple(map(torch.cat, zip(cache, other, strict=True)))


class JoinsAtTheOwnLength(Joins):
    def join(self, cache, other):
        keys, values, lengths = super().join(cache, other)
        return keys, values, lengths[:1].expand_as(lengths)  # fault


class JoinsInFront(Joins):
    def join(self, cache, other):
        return super().join(other, cache)  # fault


class JoinsTheKeysAlone(Joins):
    def join(self, cache, other):
        keys, _, lengths = super().join(cache, other)
        values = cache[1][torch.arange(len(keys)) % len(cache[1])]
        return keys, values, lengths  # fault


class JoinsAndStaysEmpty(Joins):
    """The longer cache wins: shorter rows see the empty slots behind them."""

    def join(self, cache, other):
        keys, values, lengths = super().join(cache, other)
        return keys, values, lengths.max().expand_as(lengths)  # fault


class JoinsEvenRows(Joins):
    def join(self, cache, other):
        if len(set(torch.cat((cache[2], other[2])).tolist())) > 1:
            raise NotImplementedError("rows of one length")
        return super().join(cache, other)


class JoinsInAPool(Joins):
    """Counts the caches that were released, and joined."""

    def __init__(self, seed=0):
        super().__init__(seed)
        self.made = self.joined = self.released = 0

    def new_cache(self, batch):
        self.made += 1
        return super().new_cache(batch)

    def join(self, cache, other):
        self.joined += 1
        return super().join(cache, other)

    def release(self, cache):
        self.released += 1
