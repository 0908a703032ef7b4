"""Decoders whose fault begins in rows of more than 20 tokens: each right one beside its wrong one.

All are three methods on the cumulative sum of embedded tokens, and differ in how they store it.
"""

import torch

VOCAB = 13
BLOCK = 48
KEPT = 33


class Stored:
    """Stores the embedded tokens, and sums them at each call."""

    vocab_size, max_length = VOCAB, 150

    def __init__(self, seed=0):
        generator = torch.Generator().manual_seed(seed)
        self.table = torch.randn(VOCAB, 8, generator=generator)

    def logits(self, entries):
        # Divided by the length, so that the size of a logit does not depend on it.
        lengths = torch.arange(1, entries.shape[1] + 1, dtype=entries.dtype)
        return entries.cumsum(1) / lengths[:, None] @ self.table.T

    def uncached(self, tokens):
        return self.logits(self.table[tokens])

    def new_cache(self, batch):
        return self.table.new_zeros(batch, 0, 8)

    def cached(self, tokens, cache):
        cache = torch.cat((cache, self.table[tokens]), 1)
        return self.logits(cache)[:, -tokens.shape[1] :], cache


class ForgetsOne(Stored):
    """Forgets its oldest entry once it holds more than `kept`."""

    kept = KEPT

    def cached(self, tokens, cache):
        logits, cache = super().cached(tokens, cache)
        if cache.shape[1] > self.kept:
            cache = torch.cat((torch.zeros_like(cache[:, :1]), cache[:, 1:]), 1)
        return logits, cache


class Overflows(Stored):
    """Gives NaN after 70 entries."""

    def cached(self, tokens, cache):
        logits, cache = super().cached(tokens, cache)
        return (logits * float("nan") if cache.shape[1] > 70 else logits), cache


class Grows(Stored):
    """Stores in blocks of BLOCK entries, and copies the old ones into a larger store."""

    lost = 0

    def new_cache(self, batch):
        return self.table.new_zeros(batch, BLOCK, 8), 0

    def cached(self, tokens, cache):
        store, held = cache
        count = tokens.shape[1]
        while held + count > store.shape[1]:
            grown = store.new_zeros(len(store), store.shape[1] + BLOCK, 8)
            grown[:, : held - self.lost] = store[:, : held - self.lost]
            store = grown
        store = store.clone()
        store[:, held : held + count] = self.table[tokens]
        return self.logits(store[:, : held + count])[:, held:], (store, held + count)


class LosesOneAsItGrows(Grows):
    """Leaves the last entry behind when the store grows."""

    lost = 1


class Cropping(Stored):
    """Crops; after a crop back to BLOCK entries or fewer from more, one entry too many is gone."""

    gone = 0

    def crop(self, cache, count):
        left = max(0, cache.shape[1] - count)
        over = left <= BLOCK < cache.shape[1]
        kept = cache[:, :left].clone()
        if over and self.gone:
            kept[:, -1] = 0
        return kept


class CropsTooMuch(Cropping):
    """The same with the fault."""

    gone = 1


class Forking(Stored):
    """Copies a cache; a long one is cut at the block end, or not."""

    whole = True

    def copy(self, cache):
        if not self.whole and cache.shape[1] > BLOCK:
            return torch.cat((cache[:, :BLOCK], torch.zeros_like(cache[:, BLOCK:])), 1)
        return cache.clone()


class ForksTheFirstBlock(Forking):
    """The copy has only the first block."""

    whole = False


class Unlimited(Stored):
    """Says that it takes rows of any length."""

    max_length = None
