"""Broken frame: what a cache holds is changed, or shown, otherwise than a step says; and the logits
do not show it."""

import torch

from kvfuzz.case.schedule import Padded
from kvfuzz.subjects.zoo.places import NOWHERE
from mutants.mutant import mutant, steps

NEEDS = {"cache": ("concatenated",), "mix": ("uniform", "alternating")}


@mutant("admit", law="frame", witness=steps(1, 1))
def rewrites_the_last_bit_of_the_past(real):
    """Every call stores what was there again, with another last bit."""

    def admit(cache, tokens, mask, positions):
        for tensors in (cache.keys, cache.values):
            tensors[:] = [torch.nextafter(t, torch.zeros_like(t)) for t in tensors]
        real(cache, tokens, mask, positions)

    return admit


@mutant("admit", law="frame", witness=steps(Padded(2, "left", (1,)), 1))
def wipes_what_padding_left(real):
    """The keys and values of padding, which nobody reads, are overwritten by the next call."""

    def admit(cache, tokens, mask, positions):
        if cache.places is not None:
            hidden = (cache.places == NOWHERE)[:, None, :, None]
            for tensors in (cache.keys, cache.values):
                tensors[:] = [t.masked_fill(hidden, 0) for t in tensors]
        real(cache, tokens, mask, positions)

    return admit


@mutant(".operations:view", law="frame", witness=steps(1, 1))
def shows_one_entry_too_few(real):
    """The newest entry is there, and is not shown."""
    return lambda config, cache: [
        pair and tuple(x[:, :, :-1] for x in pair) for pair in real(config, cache)
    ]
