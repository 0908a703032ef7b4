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
    """The filling of a short row is stored behind its text, and in sight of the other calls."""

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


class Trees(Rows):
    """Takes a tree of candidates, and keeps one branch of it in each row. The cache is (keys,
    values, lengths, branches)."""

    def new_cache(self, batch):
        return (*super().new_cache(batch), None)

    def uncached(self, tokens):
        return self.run(tokens, super().new_cache(len(tokens)), whole_of(tokens))[0]

    def cached(self, tokens, cache, *, parents=None):
        *held, before = cache
        assert before is None
        if parents is None:
            logits, after = self.run(tokens, held, whole_of(tokens))
            return logits, (*after, None)
        branches = torch.eye(len(parents)).bool()
        for number, parent in enumerate(parents.tolist()):
            if parent >= 0:
                branches[number] |= branches[parent]
        logits, after = self.run_tree(tokens, held, self.in_sight(branches), self.depths(branches))
        return logits, (*after, branches)

    def in_sight(self, branches):
        return branches

    def depths(self, branches):
        return branches.sum(1) - 1

    def run_tree(self, tokens, cache, branches, depths):
        keys, values, lengths = (x.clone() for x in cache)
        index = lengths[:, None] + torch.arange(tokens.shape[1])
        x = self.token(tokens) + self.place(lengths[:, None] + depths)
        query, key, value = self.project(x).chunk(3, -1)
        rows = torch.arange(len(tokens))[:, None]
        keys[rows, index], values[rows, index] = key, value
        seen = (torch.arange(ROOM) < lengths[:, None])[:, None].repeat(1, tokens.shape[1], 1)
        for row, start in enumerate(lengths.tolist()):
            seen[row, :, start : start + tokens.shape[1]] = branches
        x = x + F.scaled_dot_product_attention(query, keys, values, attn_mask=seen)
        return self.out(x), (keys, values, lengths)

    def accept(self, cache, candidates):
        keys, values, lengths, branches = cache
        keys, values, lengths = keys.clone(), values.clone(), lengths.clone()
        for row, candidate in enumerate(candidates.tolist()):
            start = int(lengths[row])
            kept = self.kept(branches, candidate)
            moved = start + torch.tensor(kept, dtype=torch.int64)
            keys[row, start : start + len(kept)] = keys[row, moved]
            values[row, start : start + len(kept)] = values[row, moved]
            lengths[row] += len(kept)
        return keys, values, lengths, None

    def kept(self, branches, candidate):
        return [] if candidate < 0 else branches[candidate].nonzero()[:, 0].tolist()

    def rollback(self, cache, counts):
        return (*super().rollback(cache[:3], counts), None)

    def copy(self, cache):
        return (*super().copy(cache[:3]), None)

    def reorder(self, cache, rows):
        return (*super().reorder(cache[:3], rows), None)


def whole_of(tokens):
    return torch.full((len(tokens),), tokens.shape[1])


class SeesOtherBranches(Trees):
    def in_sight(self, branches):
        return torch.ones_like(branches).tril()  # fault


class CountsOtherBranches(Trees):
    def depths(self, branches):
        return torch.arange(len(branches))  # fault


class DoesNotMoveWhatItKeeps(Trees):
    def kept(self, branches, candidate):
        return list(range(len(super().kept(branches, candidate))))  # fault


class KeepsOneMore(Trees):
    def kept(self, branches, candidate):
        return super().kept(branches, max(0, candidate))  # fault


class ReturnsNothing(Trees):
    def accept(self, cache, candidates):
        return None
