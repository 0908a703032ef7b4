"""Wrong reuse: a cache still holds something of another sequence, or of another cache."""

from typing import Any

from kvfuzz.case.schedule import New, Reset, Switch
from mutants.mutant import mutant, steps

NEEDS = {"cache": ("concatenated",), "mix": ("uniform", "alternating")}
AGAIN = steps(1, Reset(), 1)


def _not_in_a_crop(crop, reset, faulty):
    """Returns a crop that uses the real reset, and a reset that is `faulty` outside of crops."""
    cropping = False

    def plain_crop(cache, count):
        nonlocal cropping
        cropping = True
        try:
            return crop(cache, count)
        finally:
            cropping = False

    return plain_crop, lambda cache: reset(cache) if cropping else faulty(cache)


@mutant(".operations:crop", ".operations:reset", site="0.cache", witness=AGAIN)
def reset_leaves_what_is_stored(crop, reset):
    """reset sets the length to zero, but keeps the keys and values."""

    def faulty(cache):
        keys, values = list(cache.keys), list(cache.values)
        cache = reset(cache)
        cache.storage.keys, cache.storage.values = keys, values
        return cache

    return _not_in_a_crop(crop, reset, faulty)


@mutant(".operations:crop", ".operations:reset", site="0.cache", witness=AGAIN)
def reset_leaves_the_first(crop, reset):
    """reset keeps the first slot, as if every sequence began with the same token."""

    def faulty(cache):
        kept = [(k[:, :, :1], v[:, :, :1]) for k, v in zip(cache.keys, cache.values, strict=True)]
        cache = reset(cache)
        for layer, pair in enumerate(kept):
            cache.keys[layer], cache.values[layer] = pair
        return cache

    return _not_in_a_crop(crop, reset, faulty)


@mutant(
    ".recurrence:reset",
    site="0.attention",
    witness=steps(1, Reset(), 1, mix="recurrent"),
    needs={"mix": ("recurrent",), "cache": ("concatenated", "static", "ring")},
    seen_in="mybigday/llama.rn#259",
)
def reset_leaves_the_recurrent_state(real):
    """reset drops keys and values, but keeps the state of the recurrent layer."""
    return lambda history: history[-1:]


@mutant(
    ".storage.ring:Ring.reset",
    site="0.attention",
    witness=steps(2, Reset(), 2, cache="ring", window=3),
    needs={"cache": ("ring",), "window": (3, 5), "mix": ("uniform",)},
)
def reset_leaves_the_ring(real):
    """reset leaves the entries of the ring in place, with their positions."""

    def reset(self):
        held = self.held
        real(self)
        self.held = held

    return reset


@mutant(
    ".storage.paged:Paged.reset",
    witness=steps(3, Reset(), 2, cache="paged"),
    needs={"cache": ("paged",), "mix": ("uniform", "alternating")},
    equivalent="a row refills its old blocks from the first one on, as it would fill new ones",
)
def reset_leaves_the_blocks(real):
    """reset frees no blocks: the next sequence of a row is written into those of the last."""
    return lambda self: None


@mutant(
    ".decoder:empty",
    site="0.attention",
    witness=steps(1, New(1), 1, mix="recurrent"),
    needs={"mix": ("recurrent",)},
    both=True,
)
def begins_with_the_state_of_another(real):
    """A new cache starts with the recurrent state of the cache made before it."""
    last: list[Any] = []

    def empty(config, batch, dtype, device):
        cache = real(config, batch, dtype, device)
        if last and len(last[-1].history[-1].hidden) == batch:
            cache.history = last[-1].history[-1:]
        last.append(cache)
        return cache

    return empty


@mutant(
    ".decoder:empty",
    site="0.cache",
    witness=steps(1, New(1), 1),
    both=True,
)
def takes_the_slots_of_another(real):
    """A new cache starts with the keys and values of the cache made before it."""
    last: list[Any] = []

    def empty(config, batch, dtype, device):
        cache = real(config, batch, dtype, device)
        if last and len(last[-1].keys[0]) >= batch:
            cache.storage.keys = [keys[:batch] for keys in last[-1].keys]
            cache.storage.values = [values[:batch] for values in last[-1].values]
        last.append(cache)
        return cache

    return empty


@mutant(
    "advance",
    "position_index",
    site="position",
    witness=steps(2, New(1), 1, Switch(0), 1),
    seen_in="huggingface/transformers#39749",
    needs={"cache": ("concatenated", "static", "paged", "prefix"), "mix": ("uniform",)},
    both=True,
)
def positions_go_on_from_another_cache(advance, position_index):
    """The model keeps one length for all caches: a call continues from that of the cache used
    last."""
    last: list[Any] = []

    def keeping(cache, count):
        advance(cache, count)
        last[:] = [cache, cache.length]

    def index(config, cache, tokens):
        found = position_index(config, cache, tokens)
        if not cache.length or not last or last[0] is cache:
            return found
        return (found - cache.length + last[1]).clamp(0, config.max_length - 1)

    return keeping, index


@mutant(
    ".operations:crop",
    ".operations:reset",
    "position_index",
    site="position",
    witness=steps(2, Reset(), 1),
    seen_in="mlc-ai/web-llm#83",
    needs={"cache": ("concatenated", "static", "paged", "prefix"), "mix": ("uniform",)},
)
def reset_leaves_the_length(crop, reset, position_index):
    """reset drops the stored entries, but positions continue from the old length."""
    length = 0

    def faulty(cache):
        nonlocal length
        length += cache.length
        return reset(cache)

    def index(config, cache, tokens):
        return (position_index(config, cache, tokens) + length).clamp(max=config.max_length - 1)

    return *_not_in_a_crop(crop, reset, faulty), index


@mutant(
    ".storage.paged:Paged.allocate",
    needs={"cache": ("paged",), "mix": ("uniform", "alternating")},
    equivalent="a row finds its blocks through its table, so any free block will do",
)
def takes_the_block_that_was_freed_last(real):
    """Free blocks are taken from the other end of the free list."""

    def allocate(self):
        self.free.reverse()
        block = real(self)
        self.free.reverse()
        return block

    return allocate
