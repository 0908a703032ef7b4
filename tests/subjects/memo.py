"""A decoder whose module remembers what it made for the first model that it saw."""

import torch

WIDTH, VOCAB = 8, 20
MEMO = {}


class Remembers:
    """The cached path takes the head of the first model of this process that got two rows."""

    vocab_size, max_length = VOCAB, 16

    def __init__(self, seed=0):
        generator = torch.Generator().manual_seed(seed)
        self.table = torch.randn(VOCAB, WIDTH, generator=generator)
        self.head = torch.randn(WIDTH, VOCAB, generator=generator)

    def uncached(self, tokens):
        return self.table[tokens].cumsum(1) @ self.head

    def new_cache(self, batch):
        return torch.zeros(batch, 1, WIDTH)

    def cached(self, tokens, cache):
        held = self.table[tokens].cumsum(1) + cache
        if len(tokens) == 2:
            MEMO.setdefault("head", self.head.clone())
        head = MEMO.get("head", self.head).to(self.head.dtype)
        return held @ head, held[:, -1:]


class WritesDown(Remembers):
    """It counts its calls in the module, which does no harm, and has a fault of its own."""

    def cached(self, tokens, cache):
        MEMO["calls"] = MEMO.get("calls", 0) + 1
        held = self.table[tokens].cumsum(1) + cache
        return held @ self.head + (1e-3 if tokens.shape[1] == 3 else 0), held[:, -1:]
