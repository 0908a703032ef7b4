"""Placebos: mutants that change nothing. One that is killed shows a false alarm of the checker."""

from kvfuzz.subjects.zoo import operations
from mutants.mutant import mutant


@mutant("store", placebo=True)
def passes_through(real):
    """Every append goes through a wrapper that calls the real one."""
    return lambda cache, layer, key, value: real(cache, layer, key, value)


@mutant("fetch", placebo=True)
def copies_what_is_read(real):
    """Attention reads copies of the stored keys and values."""

    def fetch(cache, layer):
        keys, values = real(cache, layer)
        return keys.clone(), values.clone()

    return fetch


@mutant(".operations:crop", placebo=True)
def crops_a_copy(real):
    """crop works on a copy of the cache and returns that copy."""
    return lambda cache, count: real(operations.copy(cache), count)


@mutant(".operations:reorder", placebo=True)
def reorders_a_copy(real):
    """reorder works on a copy of the cache and returns that copy."""
    return lambda cache, rows: real(operations.copy(cache), rows)
