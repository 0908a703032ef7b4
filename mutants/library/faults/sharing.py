"""Wrong sharing: what belongs to one cache is on the model, where every cache finds it."""

from typing import Any

from kvfuzz.case.schedule import New, Switch
from mutants.mutant import mutant, steps

NEEDS = {"cache": ("concatenated",), "mix": ("uniform",)}
BACK = (2, New(1), 1, Switch(0), 1)


@mutant(
    ".decoder:empty",
    "advance",
    "position_index",
    site="position",
    witness=steps(1, New(1), 1),
    seen_in="rasbt/LLMs-from-scratch#925",
    needs={"cache": ("concatenated", "static", "paged", "prefix")},
    both=True,
)
def the_next_cache_goes_on_counting(empty, advance, position_index):
    """The positions of a new cache continue from those of the cache made before it."""
    starts: dict[int, int] = {}
    made: list[Any] = []
    fed = 0

    def going_on(config, batch, dtype, device):
        cache = empty(config, batch, dtype, device)
        starts[id(cache)] = fed
        made.append(cache)  # kept, so that its id is not given to another
        return cache

    def counting(cache, count):
        nonlocal fed
        advance(cache, count)
        fed += count

    def index(config, cache, tokens):
        found = position_index(config, cache, tokens) + starts.get(id(cache), 0)
        return found.clamp(max=config.max_length - 1)

    return going_on, counting, index


@mutant(
    ".decoder:empty",
    site="0.cache",
    witness=steps(*BACK, cache="static"),
    needs={"cache": ("static",)},
    both=True,
)
def one_buffer_for_all_caches(real):
    """Every cache counts its own slots, and stores them in the one buffer of the model."""
    first: list[Any] = []

    def empty(config, batch, dtype, device):
        cache = real(config, batch, dtype, device)
        if not first or len(first[0].keys[0]) < batch:
            first[:] = [cache]
        cache.storage.keys = [keys[:batch] for keys in first[0].keys]
        cache.storage.values = [values[:batch] for values in first[0].values]
        return cache

    return empty


@mutant(
    ".decoder:empty",
    ".operations:reorder",
    site="0.cache",
    witness=steps(*BACK),
    both=True,
)
def second_cache_is_the_first(real, reorder):
    """A new cache takes the storage of the last one for as many rows, and empties it."""
    made: dict[int, Any] = {}

    def empty(config, batch, dtype, device):
        cache = real(config, batch, dtype, device)
        if batch in made and len(made[batch].keys[0]) == batch:
            cache.storage = made[batch].storage
            cache.storage.reset()
        made[batch] = cache
        return cache

    def apart(cache, rows):
        cache.storage = cache.storage.copy()  # rows of one alone would not fit the other
        return reorder(cache, rows)

    return empty, apart


@mutant(
    ".decoder:empty",
    site="0.cache",
    witness=steps(*BACK, rows=2, cache="paged"),
    needs={"cache": ("paged",)},
    both=True,
)
def blocks_by_the_number_of_the_row(real):
    """All caches have one pool of blocks, in which a row takes the same ones whatever its cache."""
    first: list[Any] = []

    def empty(config, batch, dtype, device):
        cache = real(config, batch, dtype, device)
        if not first or len(first[0].keys[0]) < batch:
            first[:] = [cache]
        cache.storage.keys, cache.storage.values = first[0].keys, first[0].values
        return cache

    return empty
