"""Decoders that derive a constant from their weights when they are built, right and wrong.

The difference that the constant makes in float64 is of the size of float32's rounding, and so are
the faults here."""

import numpy as np
import torch
from torch import nn


class Leaky(nn.Module):
    """A leaky sum. The uncached path computes the leak of each channel from a weight on every
    call; for decoding it is kept from the start, as an ordinary attribute."""

    vocab_size, max_length = 17, None

    def __init__(self, seed=0):
        super().__init__()
        torch.manual_seed(seed)
        self.table = nn.Embedding(17, 6)
        self.out = nn.Linear(6, 17)
        self.rate = nn.Parameter(torch.empty(6).normal_())
        self.gain = nn.Parameter(torch.rand(6) + 0.5)
        self.leak = self.derived()

    def derived(self):
        return torch.sigmoid(self.rate.detach())

    def step(self, state, x, leak):
        return state * leak + x * self.gain

    def read(self, state):
        return self.out(state)

    def uncached(self, tokens):
        state, found = torch.zeros(len(tokens), 6), []
        for x in self.table(tokens).unbind(1):
            state = self.step(state, x, torch.sigmoid(self.rate))
            found.append(self.out(state))
        return torch.stack(found, 1)

    def new_cache(self, batch):
        return torch.zeros(batch, 6)

    def kept(self, state):
        return state

    def cached(self, tokens, cache):
        found = []
        for x in self.table(tokens).unbind(1):
            cache = self.kept(self.step(cache, x, self.leak))
            found.append(self.read(cache))
        return torch.stack(found, 1), cache


class Plain:
    """The same, of plain tensors."""

    vocab_size, max_length = 17, None

    def __init__(self, seed=0):
        generator = torch.Generator().manual_seed(seed)
        self.table = torch.randn(17, 6, generator=generator) / 6**0.5
        self.rate = torch.randn(6, generator=generator)
        self.leak = torch.exp(-torch.exp(self.rate))

    def run(self, tokens, state, leak):
        found = []
        for x in self.table[tokens].unbind(1):
            state = state * leak + x
            found.append(state @ self.table.T)
        return torch.stack(found, 1), state

    def uncached(self, tokens):
        state = torch.zeros(len(tokens), 6)
        return self.run(tokens, state, torch.exp(-torch.exp(self.rate)))[0]

    def new_cache(self, batch):
        return torch.zeros(batch, 6)

    def cached(self, tokens, cache):
        return self.run(tokens, cache, self.leak)


class LeakyInHalf(Leaky):
    """A bfloat16 model, whose constant is bfloat16 too."""

    def __init__(self, seed=0):
        super().__init__(seed)
        self.model = self.to(torch.bfloat16)
        self.leak = self.derived()

    def new_cache(self, batch):
        return super().new_cache(batch).to(self.gain.dtype)

    def uncached(self, tokens):
        state, found = self.new_cache(len(tokens)), []
        for x in self.table(tokens).unbind(1):
            state = self.step(state, x, torch.sigmoid(self.rate))
            found.append(self.out(state))
        return torch.stack(found, 1)

    def __getattr__(self, name):  # `model` is the module itself, which registers no child
        return super().__getattr__(name)

    def __setattr__(self, name, value):
        if name == "model":
            object.__setattr__(self, name, value)
        else:
            super().__setattr__(name, value)


class StoresFloat32(Leaky):
    """A fault: the cache loses what float32 cannot hold."""

    def kept(self, state):
        return torch.from_numpy(state.numpy().astype(np.float32)).to(state.dtype)


class OtherEpsilon(Leaky):
    """A fault: the cached path divides by a little more."""

    def read(self, state):
        return self.out(state / (1 + 1e-7))


class TooLarge(Leaky):
    """A fault: what decodes is too large by one part in ten million."""

    def kept(self, state):
        return state * (1 + 1e-7)


class TableInFloat32(Leaky):
    """A fault: the constant goes through an array of float32, in a model of any dtype."""

    def derived(self):
        narrow = super().derived().numpy().astype(np.float32)
        return torch.from_numpy(narrow).to(self.rate.dtype)


class OtherWeights(Leaky):
    """Its weights depend on the default dtype, so that nothing can be told by building it again."""

    def __init__(self, seed=0):
        super().__init__(seed + (torch.get_default_dtype() == torch.float64))


class OnlyOnce(Leaky):
    """It cannot be built in another default dtype."""

    def __init__(self, seed=0):
        if torch.get_default_dtype() != torch.float32:
            raise TypeError("float32 alone")
        super().__init__(seed)


class OtherEachTime(Leaky):
    """A fault: its first runs of the cached path are wrong, by a little."""

    runs = 0

    def new_cache(self, batch):
        OtherEachTime.runs += 1
        return super().new_cache(batch)

    def read(self, state):
        return self.out(state * (1 + 1e-7 * (OtherEachTime.runs < 2)))
