"""Decoders that round: in islands of float32, in what they cache, in the dtype of the model."""

import math

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


class Int8PerToken(Preallocated):
    """Keys and values are stored as int8 codes, with a scale for each token."""

    cache_dtype = "int8"

    def scale_of(self, state):
        return state.abs().amax(-1, keepdim=True).clamp_min(1e-6) / 127

    def new_cache(self, batch):
        return [(torch.zeros(batch, 0, WIDTH, dtype=torch.int8), None) for _ in range(2)]

    def added(self, held, state):
        """Codes and scales with those of `state` behind them."""
        scale = self.scale_of(state)
        codes = torch.cat((held[0], (state / scale).round().clamp(-127, 127).to(torch.int8)), 1)
        return codes, scale if held[1] is None else torch.cat((held[1], scale), 1)

    def cached(self, tokens, cache):
        start = cache[0][0].shape[1]
        x = self.net.embedded(tokens, start)
        keys, values = self.stored(x @ self.net.key), self.stored(x @ self.net.value)
        cache = [self.added(*each) for each in zip(cache, (keys, values), strict=True)]
        read = (codes.to(x.dtype) * scale for codes, scale in cache)
        return self.net.attend(x, *read, start), cache


class Int8LatestScale(Int8PerToken):
    """All codes are read under the scale of the newest call."""

    def scale_of(self, state):
        return state.abs().amax((1, 2), keepdim=True).clamp_min(1e-6) / 127

    def added(self, held, state):
        return super().added((held[0], None), state)


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

    one_cache_at_a_time = True

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


class Coarse(Summing):
    """Outside float64 the cached path is off by a little: a device of its own arithmetic."""

    off = 3e-6

    def cached(self, tokens, cache):
        logits, cache = super().cached(tokens, cache)
        return (logits if logits.dtype == torch.float64 else logits * (1 + self.off)), cache


class TooCoarse(Coarse):
    """By more than any arithmetic explains."""

    off = 1e-2


class InHalfInside(Preallocated):
    """Both paths go through float16, which is not promoted."""

    def uncached(self, tokens):
        logits = super().uncached(tokens)
        return logits.half().to(logits.dtype)

    def cached(self, tokens, cache):
        logits, cache = super().cached(tokens, cache)
        return logits.half().to(logits.dtype), cache
