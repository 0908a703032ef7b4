"""Wrong layer: a layer reads or writes the cache of another layer."""

from dataclasses import replace

import torch

from mutants.mutant import mutant, steps

NEEDS = {"cache": ("concatenated",), "mix": ("uniform", "alternating"), "layers": (2, 3)}
"""The cache is a list with one tensor per layer, and there are at least two layers."""


def _below(layer):
    return max(layer - 1, 0)


def _above(cache, layer):
    return min(layer + 1, len(cache.keys) - 1)


@mutant("fetch", site="1.cache", witness=steps(2))
def reads_the_layer_below(real):
    """Each layer attends to the keys and values of the layer below it."""
    return lambda cache, layer: real(cache, _below(layer))


@mutant("fetch", site="0.cache", witness=steps(1))
def reads_the_layer_above(real):
    """Each layer attends to the keys and values of the layer above it."""
    return lambda cache, layer: real(cache, _above(cache, layer))


@mutant("store", site="1.cache", witness=steps(1))
def writes_to_the_layer_below(real):
    """Each layer appends its keys and values to the cache of the layer below it."""
    return lambda cache, layer, key, value: real(cache, _below(layer), key, value)


@mutant("store", site="0.cache", witness=steps(1))
def writes_to_the_layer_above(real):
    """Each layer appends its keys and values to the cache of the layer above it."""
    return lambda cache, layer, key, value: real(cache, _above(cache, layer), key, value)


@mutant("fetch", site="1.cache", witness=steps(2))
def keys_of_the_layer_below(real):
    """Keys come from the layer below, values from the layer itself."""
    return lambda cache, layer: (real(cache, _below(layer))[0], real(cache, layer)[1])


@mutant("fetch", site="1.cache", witness=steps(1))
def values_of_the_layer_below(real):
    """Values come from the layer below, keys from the layer itself."""
    return lambda cache, layer: (real(cache, layer)[0], real(cache, _below(layer))[1])


@mutant("store", "fetch", site="1.cache", witness=steps(1, 1))
def prefix_of_the_layer_below(store, fetch):
    """Each layer attends to its own new keys and values, but to the prefix of the layer below."""
    new = 0

    def counting_store(cache, layer, key, value):
        nonlocal new
        new = key.shape[2]
        store(cache, layer, key, value)

    def mixed_fetch(cache, layer):
        return tuple(
            torch.cat((below[:, :, :-new], own[:, :, -new:]), dim=2)
            for below, own in zip(fetch(cache, _below(layer)), fetch(cache, layer), strict=True)
        )

    return counting_store, mixed_fetch


@mutant("store", "fetch", site="1.cache", witness=steps(1, 1))
def reads_the_layer_below_on_decode(store, fetch):
    """In a decode step, each layer attends to the cache of the layer below it."""
    single = False

    def watching_store(cache, layer, key, value):
        nonlocal single
        single = key.shape[2] == 1 and cache.keys[0].shape[2] > 1
        store(cache, layer, key, value)

    return watching_store, lambda cache, layer: fetch(cache, _below(layer) if single else layer)


@mutant("fetch", site="0.cache", witness=steps(1))
def layers_in_reverse_order(real):
    """Layers read the caches in reverse order: the first layer reads the last one's, and so on."""
    return lambda cache, layer: real(cache, len(cache.keys) - 1 - layer)


@mutant("fetch", site="1.cache", witness=steps(1))
def one_value_list_for_all_layers(real):
    """Every layer reads the values of layer 0."""
    return lambda cache, layer: (real(cache, layer)[0], real(cache, 0)[1])


@mutant("look_back", site="0.kv", witness=steps(1), seen_in="TrenTorch/TrenTorch#141")
def runs_the_last_one_in_every_layer(real):
    """Attention in every layer uses the last layer's weights, but its own cache: the function that
    wraps each layer captures the loop variable, not its value."""

    def look_back(config, weights, layer, *rest):
        last = replace(weights, layers=weights.layers[-1:] * len(weights.layers))
        return real(config, last, layer, *rest)

    return look_back
