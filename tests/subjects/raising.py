"""Decoders that raise, exit, answer NaN or break the protocol."""

import contextlib

import torch

from tests.subjects.models import ForgetsOnDecode, Summing


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


class LastLogitsOnly(Summing):
    """The cached path returns the last position's logits, whatever it was given."""

    def cached(self, tokens, cache):
        logits, cache = super().cached(tokens, cache)
        return logits[:, -1:], cache


class NoTuple(Summing):
    """The cached path returns logits without the cache."""

    def cached(self, tokens, cache):
        return super().cached(tokens, cache)[0]


class ExtraArgument(Summing):
    """Its cached path needs an argument that nobody passes."""

    def cached(self, tokens, cache, position):
        return super().cached(tokens, cache)


class NoCacheMethod:
    """Lacks new_cache and cached."""

    vocab_size = 11
    max_length = None

    def uncached(self, tokens):
        return torch.zeros(*tokens.shape, 11)


class BadVocabulary(Summing):
    """Has a vocabulary of nothing."""

    vocab_size = 0


def fails_to_build():
    raise OSError("no weights here\nnor there")


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


class TracesBadly(ForgetsOnDecode):
    """Offers a trace that names no site."""

    def trace(self, note):

        @contextlib.contextmanager
        def inside():
            note("nosuch", None, torch.zeros(1, 1, 1))
            yield

        return inside()
