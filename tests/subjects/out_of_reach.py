"""Decoders whose weights, caches or arithmetic kvfuzz cannot easily find or change."""

import functools
from typing import NamedTuple

import torch

from tests.subjects.models import Summing
from tests.subjects.numerics import LONGEST, VOCAB, WIDTH, Preallocated


def opaque(seed=0, dtype=torch.float32):
    """A decoder whose weights are in closures, where nothing finds them."""
    inner = Summing(seed)
    inner.table, inner.out = inner.table.to(dtype), inner.out.to(dtype)

    class Opaque:
        vocab_size, max_length = 11, None

        def uncached(self, tokens):
            return inner.uncached(tokens)

        def new_cache(self, batch):
            return inner.new_cache(batch).to(dtype)

        def cached(self, tokens, cache):
            return inner.cached(tokens, cache)

    return Opaque()


def hiding(seed=0, dtype=torch.float32):
    """One that holds a tensor, but not one that it computes with."""
    subject = opaque(seed, dtype)
    subject.decoration = torch.ones(3)
    return subject


EXTERNAL = opaque()


class LazyTable(Preallocated):
    """A table that is made on first use, in the dtype that is current then, and kept."""

    def __init__(self, seed=0):
        super().__init__(seed)
        self.calls = 0

    def table(self):
        if not hasattr(self.net, "scales"):
            self.net.scales = 1 + torch.arange(float(WIDTH)) / 7
            self.net.register_buffer("again", self.net.scales.clone(), persistent=False)
        return self.net.scales * self.net.again

    def stored(self, state):
        self.calls += 1
        return state

    def uncached(self, tokens):
        x = self.net.embedded(tokens, 0) * self.table()
        return self.net.attend(x, x @ self.net.key, x @ self.net.value, 0)

    def cached(self, tokens, cache):
        embedded, table = self.net.embedded, self.table()
        self.net.embedded = lambda tokens, start: embedded(tokens, start) * table
        try:
            return super().cached(tokens, cache)
        finally:
            del self.net.embedded


class _Delegating:
    """Answers what the decoder that it holds answers."""

    __slots__ = ()

    def uncached(self, tokens):
        return self.inner.uncached(tokens)

    def new_cache(self, batch):
        return self.inner.new_cache(batch)

    def cached(self, tokens, cache):
        return self.inner.cached(tokens, cache)


class Slots(_Delegating):
    """A subject without a dictionary of attributes."""

    __slots__ = ("inner", "max_length", "vocab_size")

    def __init__(self, seed=0):
        self.inner, self.vocab_size, self.max_length = Preallocated(seed), VOCAB, LONGEST


class _Fields(NamedTuple):
    inner: Preallocated
    vocab_size: int = VOCAB
    max_length: int = LONGEST


class _Named(_Delegating, _Fields):
    __slots__ = ()


def Named(seed=0):  # noqa: N802
    """A subject that is a tuple."""
    return _Named(Preallocated(seed))


class HasATwinOfItsOwn(Preallocated):
    """Attributes that are called as ours are."""

    twin, in_double, subject = "siamese", True, "biology"


class ThroughNumpy(Preallocated):
    """A softmax in numpy's float32, which no mode of torch's can reach."""

    def uncached(self, tokens):
        return self.rounded(super().uncached(tokens))

    def rounded(self, logits):
        return torch.from_numpy(logits.detach().numpy().astype("float32")).to(logits.dtype)

    def cached(self, tokens, cache):
        logits, cache = super().cached(tokens, cache)
        return self.rounded(logits), cache


_GLOBAL = Summing(5)


class InGlobals:
    """Weights in a global, and an answer that is copied into a tensor of the default dtype."""

    vocab_size, max_length = 11, None

    def uncached(self, tokens):
        logits = torch.zeros(*tokens.shape, 11)
        logits.copy_(_GLOBAL.uncached(tokens))
        return logits

    def new_cache(self, batch):
        return _GLOBAL.new_cache(batch).to(_GLOBAL.table.dtype)

    def cached(self, tokens, cache):
        found, cache = _GLOBAL.cached(tokens, cache.to(_GLOBAL.table.dtype))
        logits = torch.zeros(*tokens.shape, 11)
        logits.copy_(found)
        return logits, cache


def _to_single(x: torch.Tensor) -> torch.Tensor:
    return x.float().to(x.dtype)


@functools.cache
def _scripted():
    return torch.jit.script(_to_single)


def _single(x):
    return _scripted()(x)


class Scripted(Preallocated):
    """An island inside a scripted function."""

    def uncached(self, tokens):
        return _single(super().uncached(tokens))

    def cached(self, tokens, cache):
        logits, cache = super().cached(tokens, cache)
        return _single(logits), cache


class HardCodedCache(Preallocated):
    """A cache of the legacy type that is float32 whatever is asked for."""

    def new_cache(self, batch):
        return [0, *(torch.FloatTensor(batch, LONGEST, WIDTH).zero_() for _ in range(2))]

    def cached(self, tokens, cache):
        start, keys, values = cache
        logits, (stop, *_) = super().cached(tokens, [start, keys, values])
        return logits, [stop, keys, values]


class ScriptedInside(Preallocated):
    """An island inside a scripted function, but logits reach the weights by another way too."""

    def uncached(self, tokens):
        logits = super().uncached(tokens)
        return logits + _single(logits.tanh())

    def cached(self, tokens, cache):
        logits, cache = super().cached(tokens, cache)
        return logits + _single(logits.tanh()), cache


class AllocatesOnFirstUse(Preallocated):
    """The cache is allocated when it is first needed, and kept for all that follow."""

    one_cache_at_a_time = True

    def new_cache(self, batch):
        if not hasattr(self, "kept"):
            self.kept = [torch.zeros(4, LONGEST, WIDTH) for _ in range(2)]
        for tensor in self.kept:
            tensor.zero_()
        return [0, *(tensor[:batch] for tensor in self.kept)]
