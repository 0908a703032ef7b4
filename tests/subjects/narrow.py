"""Decoders that are moved to bfloat16 or float16 by those who use them, right and wrong there."""

import torch
from torch import nn

from tests.subjects.numerics import LONGEST, VOCAB, WIDTH, Attention


class Moved:
    """One layer of attention. Its cache is empty at first, and has the dtype of the model."""

    vocab_size, max_length = VOCAB, LONGEST

    def __init__(self, seed=0):
        self.model = Attention(seed)

    def uncached(self, tokens):
        x = self.model.embedded(tokens, 0)
        return self.model.attend(x, x @ self.model.key, x @ self.model.value, 0)

    def empty(self, batch):
        return torch.zeros(batch, 0, WIDTH, dtype=self.model.key.dtype)

    def new_cache(self, batch):
        return [self.empty(batch), self.empty(batch)]

    def cached(self, tokens, cache):
        start = cache[0].shape[1]
        x = self.model.embedded(tokens, start)
        keys = torch.cat((cache[0], x @ self.model.key), 1)
        values = torch.cat((cache[1], x @ self.model.value), 1)
        return self.model.attend(x, keys, values, start), [keys, values]


class WithoutADtype(Moved):
    """A fault: its cache is float32 in a model of any dtype, and so raises."""

    def empty(self, batch):
        return torch.zeros(batch, 0, WIDTH)


class Widens(WithoutADtype):
    """A fault: what it reads from that cache makes it compute in float32."""

    def cached(self, tokens, cache):
        start = cache[0].shape[1]
        x = self.model.embedded(tokens, start).float()
        names = ("query", "key", "value", "token")
        weights = {name: getattr(self.model, name).float() for name in names}
        keys = torch.cat((cache[0], x @ weights["key"]), 1)
        values = torch.cat((cache[1], x @ weights["value"]), 1)
        scores = x @ weights["query"] @ keys.transpose(1, 2) / WIDTH**0.5
        index = torch.arange(start, start + x.shape[1])
        hidden = torch.arange(keys.shape[1])[None] > index[:, None]
        scores = scores.masked_fill(hidden, float("-inf")).softmax(-1)
        return (x + scores @ values) @ weights["token"].T, [keys, values]


class WrongInHalf(Moved):
    """A fault: in a narrow dtype alone it forgets the first token."""

    def cached(self, tokens, cache):
        if cache[0].shape[1] and self.model.key.dtype in (torch.bfloat16, torch.float16):
            cache = [torch.roll(one, 1, 1) * 2 for one in cache]
        return super().cached(tokens, cache)


class LacksAKernel(Moved):
    """Neither path has what it needs in float16."""

    def needs(self):
        if self.model.key.dtype == torch.float16:
            raise RuntimeError("no kernel for Half")

    def uncached(self, tokens):
        self.needs()
        return super().uncached(tokens)

    def cached(self, tokens, cache):
        self.needs()
        return super().cached(tokens, cache)


class LacksAKernelForLongRows(LacksAKernel):
    """And it shows in rows of more than one token alone."""

    def uncached(self, tokens):
        return super().uncached(tokens) if tokens.shape[1] > 1 else Moved.uncached(self, tokens)


class KeepsATable(Moved):
    """A table of it does not move with the module."""

    def __init__(self, seed=0):
        super().__init__(seed)
        self.table = torch.ones(WIDTH)


class TakesADtype(WithoutADtype):
    """It is built in a dtype, and its cache is not."""

    def __init__(self, seed=0, dtype=torch.float32):
        super().__init__(seed)
        self.model.to(dtype)


class Itself(nn.Module):
    """A torch module that is the subject itself."""

    vocab_size, max_length = 11, None

    def __init__(self, seed=0):
        super().__init__()
        torch.manual_seed(seed)
        self.table, self.out = nn.Embedding(11, 8), nn.Linear(8, 11)

    def uncached(self, tokens):
        return self.out(self.table(tokens).cumsum(1))

    def new_cache(self, batch):
        return torch.zeros(batch, 8)

    def cached(self, tokens, cache):
        sums = cache[:, None] + self.table(tokens).cumsum(1)
        return self.out(sums), sums[:, -1]


class Chooses(Moved):
    """The cached path reads a token for another where the rounding of bfloat16 decides, now and
    then."""

    def cached(self, tokens, cache):
        logits, cache = super().cached(tokens, cache)
        narrow = logits.dtype == torch.bfloat16
        return (logits.flip(-1) if narrow and float(self.model.key[0, 0]) > 0 else logits), cache
