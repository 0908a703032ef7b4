"""Wrong beyond a length: what holds for a row of 20 tokens fails once more entries are held."""

import math
from typing import Any

import torch

from mutants.mutant import mutant, steps

LISTED: dict[str, Any] = {"cache": ("concatenated",), "mix": ("uniform", "alternating")}
PAGES: dict[str, Any] = {"cache": ("paged",), "mix": ("uniform", "alternating"), "window": (None,)}
STEP = 24
"""The entries of a block, for a cache that grows by blocks."""


@mutant("store", needs=LISTED | {"window": (None,)}, site="0.cache", witness=steps(32, 1))
def evicts_beyond_its_budget(real):
    """A cache with a budget of 32 entries drops the oldest one with every call beyond, although the
    layer has no window."""

    def store(cache, layer, key, value):
        real(cache, layer, key, value)
        if cache.keys[layer].shape[2] > 32:
            for entries in (cache.keys, cache.values):
                entries[layer] = entries[layer][:, :, 1:]

    return store


@mutant("store", needs=LISTED, site="0.cache", witness=steps(20, 8))
def leaves_the_end_of_a_block_empty(real):
    """A cache that grows by blocks of 24 entries starts the new block early: what a call writes
    across the end of a block is lost up to that end."""

    def store(cache, layer, key, value):
        held, count = cache.keys[layer].shape[2], key.shape[2]
        end = math.ceil(held / STEP) * STEP
        real(cache, layer, key, value)
        if held < end < held + count:
            for entries in (cache.keys, cache.values):
                entries[layer] = entries[layer].clone()
                entries[layer][:, :, held:end] = 0

    return store


@mutant("store", needs=LISTED, site="0.cache", witness=steps(40, 1))
def is_not_a_number_beyond_its_room(real):
    """Values that are stored in the slots after the 40th are not a number: nobody has written a
    scale for them."""

    def store(cache, layer, key, value):
        held = cache.values[layer].shape[2]
        slots = torch.arange(held, held + value.shape[2], device=value.device)
        real(cache, layer, key, value.masked_fill((slots >= 40)[:, None], math.nan))

    return store


@mutant("position_index", site="position", witness=steps(32, 1))
def reuses_the_table_of_positions(real):
    """The cached path has a table of 32 positions, and begins again at its start where a row is
    longer."""
    return lambda config, cache, tokens: real(config, cache, tokens) % 32


@mutant(
    ".storage.paged:Paged.allocate",
    needs=PAGES,
    site="0.cache",
    witness=steps(32, 1, cache="paged"),
)
def growing_forgets_the_last_block(real):
    """When a large pool grows, the last of its blocks is not copied: it is empty afterwards."""

    def allocate(self):
        blocks = self.keys[0].shape[0]
        grows = not self.free
        number = real(self)
        if grows and blocks >= 8 * len(self.tables):
            for pool in (*self.keys, *self.values):
                pool[blocks - 1] = 0
        return number

    return allocate
