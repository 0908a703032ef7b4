"""Decoders that sum embeddings, right and wrong: the wrong answer, never an error.

Decoders that raise are in `raising`.
"""

import torch


class Summing:
    """Logits are a fixed projection of the sum of all embeddings so far."""

    vocab_size = 11
    max_length = None
    choices = {"flavour": ("plain", "salted")}

    def __init__(self, seed=0, flavour="plain"):
        generator = torch.Generator().manual_seed(seed)
        self.table = torch.randn(11, 8, generator=generator)
        self.out = torch.randn(8, 11, generator=generator)
        self.flavour = flavour

    def uncached(self, tokens):
        return self.table[tokens].cumsum(1) @ self.out

    def new_cache(self, batch):
        return torch.zeros(batch, 8)

    def cached(self, tokens, cache):
        sums = cache[:, None] + self.table[tokens].cumsum(1)
        return sums @ self.out, sums[:, -1]


class ForgetsOnDecode(Summing):
    """A single token is taken for the first one."""

    def cached(self, tokens, cache):
        if tokens.shape[1] == 1:
            cache = torch.zeros_like(cache)
        return super().cached(tokens, cache)


class Zero(Summing):
    """Both paths give zero, which shows nothing."""

    def uncached(self, tokens):
        return super().uncached(tokens) * 0

    def cached(self, tokens, cache):
        logits, cache = super().cached(tokens, cache)
        return logits * 0, cache


class SeesTheFuture(Summing):
    """One uncached run over all tokens leaks later ones into earlier positions; the cached path
    is right, and so is each uncached run's last position."""

    def uncached(self, tokens):
        logits = super().uncached(tokens)
        leak = self.table[tokens].sum(1, keepdim=True) @ self.out
        last = torch.arange(tokens.shape[1]) == tokens.shape[1] - 1
        return torch.where(last[None, :, None], logits, logits + leak)


class WrongUncached(Summing):
    """The uncached path is wrong at every third position; both ways of caching agree."""

    def uncached(self, tokens):
        third = torch.arange(tokens.shape[1]) % 3 == 2
        logits = super().uncached(tokens)
        return torch.where(third[None, :, None], 2 * logits, logits)


class WrongInChunks(Summing):
    """A chunk's logits are wrong by its size."""

    def cached(self, tokens, cache):
        logits, cache = super().cached(tokens, cache)
        return logits * (1 + (tokens.shape[1] - 1) / 4), cache


class OverwritesItsLogits(Summing):
    """The cached path returns the same buffer each time, and writes over it."""

    max_length = 64

    def new_cache(self, batch):
        self.buffer = torch.zeros(batch, 64, 11)
        return super().new_cache(batch)

    def cached(self, tokens, cache):
        logits, cache = super().cached(tokens, cache)
        view = self.buffer[:, : tokens.shape[1]]
        view.copy_(logits)
        return view, cache


class Moody(Summing):
    """The cached path is wrong every third time it is asked for more than one token."""

    asked = 0

    def cached(self, tokens, cache):
        logits, cache = super().cached(tokens, cache)
        Moody.asked += 1
        return (logits + 1 if Moody.asked % 3 == 0 else logits), cache


class ShortSighted(Summing):
    """Takes rows of at most three tokens."""

    max_length = 3


class Module(torch.nn.Module):
    """The module behind ModuleBacked."""

    def __init__(self):
        super().__init__()
        self.table = torch.nn.Embedding(11, 8)
        self.out = torch.nn.Linear(8, 11)


class ModuleBacked:
    """A subject with a torch module as `model`; dtype and device may be changed from outside."""

    vocab_size = 11
    max_length = 16

    def __init__(self):
        self.model = Module()

    def uncached(self, tokens):
        return self.model.out(self.model.table(tokens).cumsum(1))

    def new_cache(self, batch):
        return None

    def cached(self, tokens, cache):
        sums = self.model.table(tokens).cumsum(1)
        sums = sums if cache is None else sums + cache
        return self.model.out(sums), sums[:, -1:]


a_subject = Summing(seed=3)
a_number = 7


def unseeded():
    return Summing(seed=5)


class Upcast(ModuleBacked):
    """A bfloat16 model whose logits are made float32."""

    def __init__(self):
        super().__init__()
        self.model.bfloat16()

    def uncached(self, tokens):
        return super().uncached(tokens).float()

    def cached(self, tokens, cache):
        logits, cache = super().cached(tokens, cache)
        return logits.float(), cache


class MasksVocabulary(ForgetsOnDecode):
    """One entry of the vocabulary is masked by a large finite number, in both paths."""

    mask = -1e9

    def uncached(self, tokens):
        return self.masked(super().uncached(tokens))

    def cached(self, tokens, cache):
        logits, cache = super().cached(tokens, cache)
        return self.masked(logits), cache

    def masked(self, logits):
        logits = logits.clone()
        logits[..., -1] = self.mask
        return logits


class MasksByInfinity(MasksVocabulary):
    """The same by -inf."""

    mask = -torch.inf


class SharesItsBuffer(Summing):
    """Both paths answer with views of one buffer, which the next call writes over."""

    max_length = 64

    def __init__(self, seed=0, flavour="plain"):
        super().__init__(seed, flavour)
        self.buffer = torch.zeros(8, 64, 11)

    def kept(self, logits):
        view = self.buffer[: logits.shape[0], : logits.shape[1]]
        view.copy_(logits)
        return view

    def uncached(self, tokens):
        return self.kept(super().uncached(tokens))

    def cached(self, tokens, cache):
        logits, cache = super().cached(tokens, cache)
        return self.kept(logits), cache


class FailsOnLongChunks(Summing):
    """A later chunk of more than seven tokens loses the history."""

    def cached(self, tokens, cache):
        if tokens.shape[1] > 7:
            cache = torch.zeros_like(cache)
        return super().cached(tokens, cache)


class FailsInLateChunks(Summing):
    """A chunk that begins after position 40 loses the history."""

    def new_cache(self, batch):
        return super().new_cache(batch), 0

    def cached(self, tokens, cache):
        sums, seen = cache
        if seen > 40 and tokens.shape[1] > 1:
            sums = torch.zeros_like(sums)
        logits, sums = super().cached(tokens, sums)
        return logits, (sums, seen + tokens.shape[1])


class DrawsItsOwnWeights(ForgetsOnDecode):
    """Weights come from torch's global generator, and some of them hide the fault."""

    choices = {}

    def __init__(self):
        super().__init__()
        self.table = torch.randn(11, 8)

    def cached(self, tokens, cache):
        if self.table[0, 0] < 0:
            return Summing.cached(self, tokens, cache)
        return super().cached(tokens, cache)


class DropsOut(ModuleBacked):
    """Dropout is left on."""

    def __init__(self):
        super().__init__()
        self.model.drop = torch.nn.Dropout(0.5)

    def uncached(self, tokens):
        return self.model.drop(super().uncached(tokens))

    def cached(self, tokens, cache):
        logits, cache = super().cached(tokens, cache)
        return self.model.drop(logits), cache


class LeaksState(Summing):
    """What one sequence leaves behind is added to the next."""

    left = 0.0

    def cached(self, tokens, cache):
        logits, cache = super().cached(tokens, cache)
        answer = logits + LeaksState.left
        LeaksState.left += 0.5
        return answer, cache


class SeesTheFutureLate(Summing):
    """From position 4 on, earlier logits of a longer uncached run are changed by later tokens."""

    def uncached(self, tokens):
        logits = super().uncached(tokens)
        time = torch.arange(tokens.shape[1])
        leaky = (time >= 4) & (time < tokens.shape[1] - 1)
        return torch.where(leaky[None, :, None], logits + 1, logits)


class TakesADtype(Summing):
    """Takes a torch.dtype, as torch's own modules do."""

    choices = {}

    def __init__(self, dtype=torch.float32):
        super().__init__()
        self.table = self.table.to(dtype)
        self.out = torch.empty_like(self.out, dtype=dtype).copy_(self.out)

    def new_cache(self, batch):
        return torch.zeros(batch, 8, dtype=self.table.dtype)
