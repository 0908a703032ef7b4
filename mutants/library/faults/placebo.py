"""Mutants that change nothing. One that is killed shows that the checker cries wolf."""

from kvfuzz.subjects.zoo import operations
from mutants.mutant import mutant


@mutant("store", placebo=True)
def passes_through(real):
    """Every call goes to the real append, through a function of ours."""
    return lambda cache, layer, key, value: real(cache, layer, key, value)


@mutant("fetch", placebo=True)
def copies_what_is_read(real):
    """The keys and values that are read are copies of those that are stored."""

    def fetch(cache, layer):
        keys, values = real(cache, layer)
        return keys.clone(), values.clone()

    return fetch


@mutant(".operations:crop", placebo=True)
def crops_a_copy(real):
    """What is cropped is a copy of the cache, and the copy is what goes on."""
    return lambda cache, count: real(operations.copy(cache), count)


@mutant(".operations:reorder", placebo=True)
def reorders_a_copy(real):
    """What is reordered is a copy of the cache, and the copy is what goes on."""
    return lambda cache, rows: real(operations.copy(cache), rows)
