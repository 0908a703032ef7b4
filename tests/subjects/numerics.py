"""Decoders whose arithmetic is the point: islands of float32, caches that round, caches that are
allocated beforehand, weights that cannot be found."""

import functools
import math
from typing import NamedTuple

import torch
from torch import nn

from tests.subjects.models import Summing

WIDTH, VOCAB, LONGEST = 16, 23, 32


class Attention(nn.Module):
    """One layer of attention with a float32 island, as libraries write it."""

    def __init__(self, seed=0):
        super().__init__()
        generator = torch.Generator().manual_seed(seed)

        def matrix(*shape):
            return nn.Parameter(torch.randn(*shape, generator=generator) / math.sqrt(WIDTH))

        self.token, self.position = matrix(VOCAB, WIDTH), matrix(LONGEST, WIDTH)
        self.query, self.key, self.value = (matrix(WIDTH, WIDTH) for _ in range(3))

    def embedded(self, tokens, start):
        return self.token[tokens] + self.position[start : start + tokens.shape[1]]

    def attend(self, x, keys, values, start):
        scores = x @ self.query @ keys.transpose(1, 2) / math.sqrt(WIDTH)
        index = torch.arange(start, start + x.shape[1])
        hidden = torch.arange(keys.shape[1])[None] > index[:, None]
        scores = scores.masked_fill(hidden, torch.finfo(scores.dtype).min)
        weights = torch.softmax(scores, -1, dtype=torch.float32).to(x.dtype)
        return (x + weights @ values) @ self.token.T


class Preallocated:
    """A decoder with a cache of zeros of the default dtype, which is filled in place."""

    vocab_size, max_length = VOCAB, LONGEST

    def __init__(self, seed=0):
        self.net = Attention(seed)

    def uncached(self, tokens):
        x = self.net.embedded(tokens, 0)
        return self.net.attend(x, x @ self.net.key, x @ self.net.value, 0)

    def new_cache(self, batch):
        return [0, torch.zeros(batch, LONGEST, WIDTH), torch.zeros(batch, LONGEST, WIDTH)]

    def stored(self, state):
        """What is kept of a key or a value."""
        return state

    def cached(self, tokens, cache):
        start, keys, values = cache
        stop = start + tokens.shape[1]
        x = self.net.embedded(tokens, start)
        keys[:, start:stop] = self.stored(x @ self.net.key)
        values[:, start:stop] = self.stored(x @ self.net.value)
        logits = self.net.attend(x, keys[:, :stop], values[:, :stop], start)
        return logits, [stop, keys, values]


class RoundsTo(Preallocated):
    """Keys and values lose digits on the way into the cache."""

    lossy = torch.bfloat16

    def stored(self, state):
        return state.to(self.lossy).to(state.dtype)


class DeclaresWhatItRounds(RoundsTo):
    """And says so."""

    cache_dtype = "bfloat16"


class RoundsMoreThanItDeclares(DeclaresWhatItRounds):
    """It declares bfloat16 and stores eight bits."""

    lossy = torch.float8_e5m2


class SlotOffByOne(DeclaresWhatItRounds):
    """A declared rounding is no licence for a wrong slot."""

    def cached(self, tokens, cache):
        start, keys, values = cache
        return super().cached(tokens, [max(start - 1, 0), keys, values])


class InHalf(Preallocated):
    """A bfloat16 model."""

    def __init__(self, seed=0):
        super().__init__(seed)
        self.model = self.net.to(torch.bfloat16)

    def new_cache(self, batch):
        _, keys, values = super().new_cache(batch)
        return [0, keys.bfloat16(), values.bfloat16()]


class InHalfByName(InHalf):
    """Which names its dtype wherever it makes or casts something."""

    def new_cache(self, batch):
        shape = (batch, LONGEST, WIDTH)
        return [0, *(torch.zeros(shape, dtype=torch.bfloat16) for _ in range(2))]

    def stored(self, state):
        return state.to(torch.bfloat16)


class InHalfAndQuarter(InHalf):
    """Whose cache holds eight bits: far below what bfloat16 logits can show."""

    def stored(self, state):
        return state.to(torch.float8_e4m3fn).to(state.dtype)


class RoundsAside(Summing):
    """The cached path makes a bfloat16 copy that no logit ever sees."""

    def cached(self, tokens, cache):
        logits, cache = super().cached(tokens, cache)
        self.copy = cache.bfloat16()
        return logits, cache


class RoundsInBoth(RoundsAside):
    """So does the uncached path: it is how the model computes."""

    def uncached(self, tokens):
        logits = super().uncached(tokens)
        self.copy = logits.bfloat16()
        return logits


class MasksInCached(Summing):
    """The cached path makes a mask in float32 and casts it, which changes nothing but infinity."""

    def cached(self, tokens, cache):
        mask = torch.full((3,), torch.finfo(torch.float32).min)
        mask[1] = 0
        self.mask = mask.bfloat16()
        return super().cached(tokens, cache)


class MorePrecise(Summing):
    """The cached path sums in float64 and answers in float32."""

    def new_cache(self, batch):
        return super().new_cache(batch).double()

    def cached(self, tokens, cache):
        sums = cache[:, None] + self.table[tokens].double().cumsum(1)
        return sums.to(self.table.dtype) @ self.out, sums[:, -1]


class StoresBytes(Summing):
    """The cache holds the bytes of its numbers."""

    def new_cache(self, batch):
        return super().new_cache(batch).view(torch.int8)

    def cached(self, tokens, cache):
        logits, cache = super().cached(tokens, cache.view(self.table.dtype))
        return logits, cache.contiguous().view(torch.int8)


class MakesSmaller(Summing):
    """The cached path makes something of a lower precision that is nobody's rounding."""

    def cached(self, tokens, cache):
        self.flags = torch.zeros_like(cache, dtype=torch.bfloat16)
        return super().cached(tokens, cache)


class OwnBuffers(Preallocated):
    """The cache is a pair of the subject's own tensors, which a new one clears."""

    def __init__(self, seed=0):
        super().__init__(seed)
        self.kept = [torch.zeros(4, LONGEST, WIDTH) for _ in range(2)]

    def new_cache(self, batch):
        for tensor in self.kept:
            tensor.zero_()
        return [0, *(tensor[:batch] for tensor in self.kept)]


class Forgetful(Summing):
    """Logits depend on the last token alone: there is nothing to cache."""

    def uncached(self, tokens):
        return self.table[tokens] @ self.out

    def cached(self, tokens, cache):
        return self.uncached(tokens), cache


class KeepsTokens(Summing):
    """The cache holds the tokens themselves, and everything is computed anew."""

    def new_cache(self, batch):
        return torch.zeros(batch, 0, dtype=torch.int64)

    def cached(self, tokens, cache):
        whole = torch.cat((cache, tokens), 1)
        return self.uncached(whole)[:, -tokens.shape[1] :], whole


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


class Coarse(Summing):
    """Outside float64 the cached path is off by a little: a device of its own arithmetic."""

    off = 3e-6

    def cached(self, tokens, cache):
        logits, cache = super().cached(tokens, cache)
        return (logits if logits.dtype == torch.float64 else logits * (1 + self.off)), cache


class TooCoarse(Coarse):
    """By more than any arithmetic explains."""

    off = 1e-2


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
    """An island inside a scripted function, beside which logits have another way to the weights."""

    def uncached(self, tokens):
        logits = super().uncached(tokens)
        return logits + _single(logits.tanh())

    def cached(self, tokens, cache):
        logits, cache = super().cached(tokens, cache)
        return logits + _single(logits.tanh()), cache


class InHalfInside(Preallocated):
    """Both paths go through float16, which is not promoted."""

    def uncached(self, tokens):
        logits = super().uncached(tokens)
        return logits.half().to(logits.dtype)

    def cached(self, tokens, cache):
        logits, cache = super().cached(tokens, cache)
        return logits.half().to(logits.dtype), cache


class AllocatesOnFirstUse(Preallocated):
    """The cache is allocated when it is first needed, and kept for all that follow."""

    def new_cache(self, batch):
        if not hasattr(self, "kept"):
            self.kept = [torch.zeros(4, LONGEST, WIDTH) for _ in range(2)]
        for tensor in self.kept:
            tensor.zero_()
        return [0, *(tensor[:batch] for tensor in self.kept)]
