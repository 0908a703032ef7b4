"""Wrong scale: the cached path stores or compares numbers that are too large by a small factor.

A fault with a size is injected at the smallest one that the checker promises to catch.
"""

from mutants.mutant import mutant, steps

LIMIT = {"float64": 1e-12, "float32": 3e-5}


@mutant("store", site="0.cache", witness=steps(1), sizes=LIMIT)
def values_too_large(real, size):
    """Every stored value is too large by a factor of 1 + size."""
    return lambda cache, layer, key, value: real(cache, layer, key, value * (1 + size))


@mutant(
    "store",
    site="1.cache",
    witness=steps(1),
    sizes={"float64": 1e-12, "float32": 1e-4},
    needs={"layers": (2, 3)},
)
def values_of_the_second_layer_too_large(real, size):
    """Every value that the second layer stores is too large by a factor of 1 + size."""
    return lambda cache, layer, key, value: real(
        cache, layer, key, value * (1 + size) if layer == 1 else value
    )


@mutant("store", site="0.cache", witness=steps(1, 1), sizes={"float64": 1e-12, "float32": 1e-4})
def keys_too_large(real, size):
    """Every stored key is too large by a factor of 1 + size."""
    return lambda cache, layer, key, value: real(cache, layer, key * (1 + size), value)


@mutant(
    "attend",
    equivalent="a score is the product of query and key, and scaling by powers of 2 is exact",
)
def keys_are_halved_and_queries_doubled(real):
    """Attention compares half of each key with twice the query."""
    return lambda config, weights, layer, query, keys, values, index: real(
        config, weights, layer, 2 * query, keys / 2, values, index
    )
