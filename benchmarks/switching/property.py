"""The property that both tools check: the cached path of `decoder` agrees with the uncached one, on
the cases that a hunt draws under one seed. Both do so in torch's inference mode, which nothing here
needs to leave."""

import functools

import decoder
import torch

from kvfuzz.oracle.agreement import quick_check
from kvfuzz.search.rounds import draw_cases
from kvfuzz.search.strategies import space_of
from kvfuzz.subjects.loading import as_factory

SEED, EXAMPLES = 0, 30


class Decoder:
    """The decoder of `decoder.py` as a subject."""

    vocab_size, max_length = decoder.VOCAB, decoder.LONGEST

    def __init__(self, seed=0):
        self.weights = decoder.made_weights(seed)

    def uncached(self, tokens):
        return decoder.whole(self.weights, tokens)

    def new_cache(self, batch):  # noqa: ARG002
        return 0, []

    def cached(self, tokens, cache):
        return decoder.cached(self.weights, tokens, cache)


@functools.cache
def drawn():
    """The cases, once in a process."""
    factory = as_factory(Decoder)
    return factory, draw_cases(space_of(factory), SEED, EXAMPLES)


@torch.inference_mode()
def first_divergence():
    """What differs on the first case that does; None if none does."""
    factory, cases = drawn()
    for case in cases:
        verdict = quick_check(factory.subject(case), case)
        if verdict.diverged:
            return verdict.error or str(verdict.first)
    return None
