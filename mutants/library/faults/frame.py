"""Broken frame: a step changes or hides stored entries that it should leave alone, and the logits
do not show it."""

import torch

from kvfuzz.case.schedule import Padded
from kvfuzz.subjects.zoo.places import NOWHERE
from mutants.mutant import mutant, steps

NEEDS = {"cache": ("concatenated",), "mix": ("uniform", "alternating")}


@mutant("admit", law="frame", witness=steps(1, 1))
def rewrites_the_last_bit_of_the_past(real):
    """Every call changes the last bit of all stored keys and values."""

    def admit(cache, tokens, mask, positions):
        for tensors in (cache.keys, cache.values):
            tensors[:] = [torch.nextafter(t, torch.zeros_like(t)) for t in tensors]
        real(cache, tokens, mask, positions)

    return admit


@mutant("admit", law="frame", witness=steps(Padded(2, "left", (1,)), 1))
def wipes_what_padding_left(real):
    """A later call overwrites the keys and values of padding, which no query reads, with zeros."""

    def admit(cache, tokens, mask, positions):
        if cache.places is not None:
            hidden = (cache.places == NOWHERE)[:, None, :, None]
            for tensors in (cache.keys, cache.values):
                tensors[:] = [t.masked_fill(hidden, 0) for t in tensors]
        real(cache, tokens, mask, positions)

    return admit


@mutant(".operations:view", law="frame", witness=steps(1, 1))
def shows_one_entry_too_few(real):
    """`view` leaves out the newest entry, which is stored."""
    return lambda config, cache: [
        pair and tuple(x[:, :, :-1] for x in pair) for pair in real(config, cache)
    ]
