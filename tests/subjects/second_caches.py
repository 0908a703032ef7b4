"""Decoders of three methods with several caches, or several rows, on one model: right and wrong."""

import torch
from torch import nn

LONGEST, WIDTH = 40, 8


class Attention(nn.Module):
    """One layer of attention with learned positions."""

    def __init__(self):
        super().__init__()
        self.token, self.place = nn.Embedding(20, WIDTH), nn.Embedding(LONGEST, WIDTH)
        self.project, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, 20)

    def forward(self, tokens, past, start):
        """Returns the logits of `tokens` from position `start` on, and all keys and values."""
        x = self.token(tokens) + self.place(torch.arange(start, start + tokens.shape[1]))
        query, key, value = self.project(x).split(WIDTH, -1)
        if past is not None:
            key, value = torch.cat((past[0], key), 1), torch.cat((past[1], value), 1)
        seen = torch.ones(tokens.shape[1], key.shape[1]).tril(key.shape[1] - tokens.shape[1])
        scores = (query @ key.mT).masked_fill(seen == 0, -torch.inf)
        return self.out(x + scores.softmax(-1) @ value), (key, value)


class Right:
    """Each cache has a dict of its own."""

    vocab_size, max_length = 20, LONGEST

    def __init__(self, seed=0):
        torch.manual_seed(seed)
        self.model = Attention().eval()

    def uncached(self, tokens):
        return self.model(tokens, None, 0)[0]

    def new_cache(self, batch):
        return {"past": None, "at": 0}

    def cached(self, tokens, cache):
        logits, cache["past"] = self.model(tokens, cache["past"], cache["at"])
        cache["at"] += tokens.shape[1]
        return logits, cache


class CountsOnTheModel(Right):
    """The position is the model's, and each new cache sets it back."""

    def new_cache(self, batch):
        self.at = 0
        return super().new_cache(batch)

    def cached(self, tokens, cache):
        cache["at"] = self.at
        self.at += tokens.shape[1]
        return super().cached(tokens, cache)


class CountsOn(CountsOnTheModel):
    """The position is the model's, and nothing sets it back."""

    def __init__(self, seed=0):
        super().__init__(seed)
        self.at = 0

    def new_cache(self, batch):
        return Right.new_cache(self, batch)


class SecondIsTheFirst(Right):
    """Caches of one number of rows are one object, emptied for whoever asks for it."""

    def __init__(self, seed=0):
        super().__init__(seed)
        self.held = {}

    def new_cache(self, batch):
        cache = self.held.setdefault(batch, {})
        cache.update(past=None, at=0)
        return cache


class SharesABuffer(Right):
    """Caches count for themselves, and write into one buffer of the model."""

    def __init__(self, seed=0):
        super().__init__(seed)
        self.buffer = torch.zeros(2, 8, LONGEST, WIDTH)

    def cached(self, tokens, cache):
        rows, at = len(tokens), cache["at"]
        self.buffer = self.buffer.to(self.model.out.weight.dtype)
        past = tuple(self.buffer[:, :rows, :at]) if at else None
        logits, entries = self.model(tokens, past, at)
        for held, entry in zip(self.buffer, entries, strict=True):
            held[:rows, at : at + tokens.shape[1]] = entry[:, at:].detach()
        return logits, {"past": None, "at": at + tokens.shape[1]}


class InTheModel(Right):
    """The modules hold the cache, as many written by hand do: one at a time, by design."""

    def new_cache(self, batch):
        self.held, self.at = None, 0

    def cached(self, tokens, cache):
        logits, self.held = self.model(tokens, self.held, self.at)
        self.at += tokens.shape[1]
        return logits, None


class InTheModelAndCountsOn(InTheModel):
    """The modules hold the cache, and the next one goes on counting."""

    def __init__(self, seed=0):
        super().__init__(seed)
        self.at = 0

    def new_cache(self, batch):
        self.held = None


class OneAtATime(CountsOnTheModel):
    """Says that a new cache ends the one before."""

    one_cache_at_a_time = True


class TwoAtATime(InTheModel):
    """Says that it should hold several, which it does not."""

    one_cache_at_a_time = False


class Pool(Right):
    """Gives each cache slots of a pool for three caches, taken back when it is released."""

    slots = 12

    def __init__(self, seed=0):
        super().__init__(seed)
        self.free = list(range(self.slots))
        self.past = {}

    def new_cache(self, batch):
        if len(self.free) < batch:
            raise RuntimeError("the pool is empty")
        return {"slots": [self.free.pop(0) for _ in range(batch)], "at": 0}

    def row_of(self, number, slot):
        return slot

    def cached(self, tokens, cache):
        names = [self.row_of(*pair) for pair in enumerate(cache["slots"])]
        past = None
        if cache["at"]:
            past = tuple(torch.stack(x) for x in zip(*(self.past[n] for n in names), strict=True))
        logits, entries = self.model(tokens, past, cache["at"])
        for row, name in enumerate(names):
            self.past[name] = [entry[row] for entry in entries]
        return logits, {**cache, "at": cache["at"] + tokens.shape[1]}

    def release(self, cache):
        self.free += cache["slots"]


class LeakyPool(Pool):
    """A pool whose rows are never taken back, since nobody tells it."""

    release = None


class SmallPool(Pool):
    """A pool for one cache of four rows, which refuses the second."""

    slots = 4

    def new_cache(self, batch):
        if len(self.free) < batch:
            raise NotImplementedError("the pool is empty")
        return super().new_cache(batch)


class PoolByRow(Pool):
    """A pool that finds a row by its number in the batch, and not by its slot."""

    def row_of(self, number, slot):
        return number


class RowsReadTheFirst(Right):
    """All rows read the values of row 0, in both paths."""

    def uncached(self, tokens):
        return self.mixed(tokens, super().uncached(tokens))

    def cached(self, tokens, cache):
        logits, cache = super().cached(tokens, cache)
        return self.mixed(tokens, logits), cache

    def mixed(self, tokens, logits):
        return logits + self.model.out(self.model.token(tokens[:1]))
