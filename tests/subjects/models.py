"""Decoders as users write them, right and wrong, for the tests to name."""

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


class RaisesOnChunks(Summing):
    """Several tokens on a filled cache are refused."""

    def cached(self, tokens, cache):
        if cache.any() and tokens.shape[1] > 1:
            raise RuntimeError("only one token at a time\nsays the cache")
        return super().cached(tokens, cache)


class RaisesInBoth(Summing):
    """Neither path takes more than two tokens in a row, but a single one always works."""

    def uncached(self, tokens):
        if tokens.shape[1] > 1:
            raise RuntimeError("too long")
        return super().uncached(tokens)

    def cached(self, tokens, cache):
        if cache.any() or tokens.shape[1] > 1:
            raise RuntimeError("too long")
        return super().cached(tokens, cache)


class RaisesOnLongRows(Summing):
    """Neither path takes more than sixteen tokens."""

    def uncached(self, tokens):
        if tokens.shape[1] > 16:
            raise RuntimeError("too long")
        return super().uncached(tokens)

    def new_cache(self, batch):
        return super().new_cache(batch), 0

    def cached(self, tokens, cache):
        sums, seen = cache
        if seen + tokens.shape[1] > 16:
            raise RuntimeError("too long")
        logits, sums = super().cached(tokens, sums)
        return logits, (sums, seen + tokens.shape[1])


class UncachedRaises(Summing):
    """The uncached path refuses three tokens, the cached one does not."""

    def uncached(self, tokens):
        if tokens.shape[1] == 3:
            raise ValueError("three")
        return super().uncached(tokens)


class NanInCached(Summing):
    """The cached path gives NaN from the second call on."""

    def cached(self, tokens, cache):
        logits, new = super().cached(tokens, cache)
        return (logits * torch.nan if cache.any() else logits), new


class NanInBoth(Summing):
    """Both paths give NaN alone."""

    def uncached(self, tokens):
        return super().uncached(tokens) * torch.nan

    def cached(self, tokens, cache):
        logits, cache = super().cached(tokens, cache)
        return logits * torch.nan, cache


class Zero(Summing):
    """Both paths give nought: nothing can be told from that."""

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


class LastLogitsOnly(Summing):
    """The cached path returns the last position's logits, whatever it was given."""

    def cached(self, tokens, cache):
        logits, cache = super().cached(tokens, cache)
        return logits[:, -1:], cache


class NoTuple(Summing):
    """The cached path returns logits without the cache."""

    def cached(self, tokens, cache):
        return super().cached(tokens, cache)[0]


class OverwritesItsLogits(Summing):
    """The cached path returns the same buffer each time, and writes over it."""

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


class NoCacheMethod:
    """Lacks new_cache and cached."""

    vocab_size = 11
    max_length = None

    def uncached(self, tokens):
        return torch.zeros(*tokens.shape, 11)


class ShortSighted(Summing):
    """Takes rows of at most three tokens."""

    max_length = 3


class BadVocabulary(Summing):
    """Has a vocabulary of nothing."""

    vocab_size = 0


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


def fails_to_build():
    raise OSError("no weights here\nnor there")


def unseeded():
    return Summing(seed=5)


class ExitsInCached(Summing):
    """The cached path ends the program."""

    def cached(self, tokens, cache):
        raise SystemExit(0)


class ExitsInUncached(Summing):
    """The uncached path ends the program."""

    def uncached(self, tokens):
        raise SystemExit(5)


class ExitsWhenBuilt(Summing):
    """Building it ends the program."""

    choices = {}

    def __init__(self):
        raise SystemExit(0)


class AlwaysRaises(Summing):
    """Neither path ever answers."""

    def uncached(self, tokens):
        raise RuntimeError("no")

    def cached(self, tokens, cache):
        raise RuntimeError("no")


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


class TracesBadly(ForgetsOnDecode):
    """Offers a trace that names no site."""

    def trace(self, note):
        import contextlib

        @contextlib.contextmanager
        def inside():
            note("nosuch", None, torch.zeros(1, 1, 1))
            yield

        return inside()


class TakesADtype(Summing):
    """Takes a torch.dtype, as torch's own modules do."""

    choices = {}

    def __init__(self, dtype=torch.float32):
        super().__init__()
        self.table = self.table.to(dtype)
        self.out = torch.empty_like(self.out, dtype=dtype).copy_(self.out)

    def new_cache(self, batch):
        return torch.zeros(batch, 8, dtype=self.table.dtype)
