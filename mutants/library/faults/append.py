"""Wrong append: a call stores its tokens twice, not at all, or in the wrong slots."""

import torch

from mutants.mutant import mutant, steps

NEEDS = {"cache": ("concatenated",), "mix": ("uniform", "alternating")}
"""These faults change the lists of a concatenated cache, which hold one tensor per layer."""


def _put(cache, layer, keys, values):
    cache.keys[layer], cache.values[layer] = keys, values


def _old(cache, layer):
    return cache.keys[layer], cache.values[layer]


@mutant("store", site="0.cache", witness=steps(1))
def drops_the_newest(real):
    """The last token of each call is not stored."""
    return lambda cache, layer, key, value: real(cache, layer, key[:, :, :-1], value[:, :, :-1])


@mutant("store", site="0.cache", witness=steps(1, 1))
def drops_the_oldest(real):
    """Each call on a filled cache evicts the oldest entry, as if the cache were full."""

    def store(cache, layer, key, value):
        keys, values = _old(cache, layer)
        _put(cache, layer, keys[:, :, 1:], values[:, :, 1:])
        real(cache, layer, key, value)

    return store


@mutant("store", site="0.cache", witness=steps(1, 1))
def duplicates_the_newest(real):
    """The last token of each call is stored twice."""

    def store(cache, layer, key, value):
        real(cache, layer, key, value)
        real(cache, layer, key[:, :, -1:], value[:, :, -1:])

    return store


@mutant("store", site="0.cache", witness=steps(1, 1), seen_in="ml-explore/mlx-swift-lm#457")
def appends_the_history_again(real):
    """A call on a filled cache appends all old entries again, followed by the new ones."""

    def store(cache, layer, key, value):
        keys, values = _old(cache, layer)
        real(cache, layer, torch.cat((keys, key), 2), torch.cat((values, value), 2))

    return store


@mutant("store", site="0.cache", witness=steps(1, 1))
def overwrites_the_last(real):
    """The write starts at length - 1: the first new entry overwrites the last old one."""

    def store(cache, layer, key, value):
        keys, values = _old(cache, layer)
        _put(cache, layer, keys[:, :, :-1], values[:, :, :-1])
        real(cache, layer, key, value)

    return store


@mutant("store", site="0.cache", witness=steps(1, 1))
def one_slot_late(real):
    """On a filled cache the write starts one slot late and leaves a slot of zeros in between."""

    def store(cache, layer, key, value):
        if cache.keys[layer].shape[2]:
            real(cache, layer, torch.zeros_like(key[:, :, :1]), torch.zeros_like(value[:, :, :1]))
        real(cache, layer, key, value)

    return store


@mutant("store", site="0.cache", witness=steps(2))
def values_one_behind_keys(real):
    """Values are stored one slot later than their keys; the first new slot repeats the last stored
    value."""

    def store(cache, layer, key, value):
        before = cache.values[layer][:, :, -1:] if cache.values[layer].shape[2] else value[:, :, :1]
        real(cache, layer, key, torch.cat((before, value[:, :, :-1]), 2))

    return store


@mutant("store", site="0.cache", witness=steps(2))
def reversed_in_the_chunk(real):
    """The tokens of a chunk are stored in reverse order."""
    return lambda cache, layer, key, value: real(cache, layer, key.flip(2), value.flip(2))


@mutant(
    "store", site="0.cache", witness=steps(1, 2), seen_in="TransformerLensOrg/TransformerLens#386"
)
def first_of_a_later_chunk_only(real):
    """A later call stores only its first token, as if every call fed one."""

    def store(cache, layer, key, value):
        new = 1 if cache.keys[layer].shape[2] else key.shape[2]
        real(cache, layer, key[:, :, :new], value[:, :, :new])

    return store


@mutant("store", site="0.cache", witness=steps(1, 2))
def later_chunk_replaces_all(real):
    """A later chunk of several tokens is treated as a new prompt: the cache is emptied first."""

    def store(cache, layer, key, value):
        if key.shape[2] > 1:
            keys, values = _old(cache, layer)
            _put(cache, layer, keys[:, :, :0], values[:, :, :0])
        real(cache, layer, key, value)

    return store


@mutant("store", site="0.cache", witness=steps(1, 2))
def prepends(real):
    """New entries are stored before the old ones instead of after them."""

    def store(cache, layer, key, value):
        keys, values = _old(cache, layer)
        _put(cache, layer, torch.cat((key, keys), 2), torch.cat((value, values), 2))

    return store


@mutant("store", site="0.cache", witness=steps(1), seen_in="TrenTorch/TrenTorch#192")
def first_token_never_stored(real):
    """The first token of a sequence is counted but not stored."""

    def store(cache, layer, key, value):
        skipped = 0 if cache.length else 1
        real(cache, layer, key[:, :, skipped:], value[:, :, skipped:])

    return store


@mutant("store", site="0.cache", witness=steps(1), seen_in="huggingface/transformers#34232")
def keys_stored_as_values(real):
    """Keys are stored as values too; the values are lost."""
    return lambda cache, layer, key, value: real(cache, layer, key, key)


@mutant("store", site="0.cache", witness=steps(1, 2, 1), seen_in="ml-explore/mlx-lm#1039")
def stores_a_later_chunk_twice(real):
    """A later chunk of several tokens is stored twice in a row."""

    def store(cache, layer, key, value):
        if cache.keys[layer].shape[2] and key.shape[2] > 1:
            real(cache, layer, key, value)
        real(cache, layer, key, value)

    return store
