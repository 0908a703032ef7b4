"""Wrong sharing between layers: the last one should read the keys and values of the one before."""

from typing import Any

from mutants.mutant import mutant, steps

NEEDS = {"mix": ("shared_kv",), "layers": (3,), "cache": ("concatenated", "static", "ring")}
THREE: dict[str, Any] = {"mix": "shared_kv", "layers": 3}


def _knowing_the_layer(look_back, fetch, other):
    """A fetch that gives what `other` makes of it in the layer that shares."""
    current = 0

    def watching(config, weights, layer, normed, index, cache, note):
        nonlocal current
        current = layer
        return look_back(config, weights, layer, normed, index, cache, note)

    def fetched(cache, layer):
        return fetch(cache, layer) if layer == current else other(cache, layer)

    return watching, fetched


@mutant("look_back", "fetch", site="2.cache", witness=steps(1, **THREE))
def reads_one_layer_too_low(look_back, fetch):
    """The last layer reads the layer before the one that it shares with."""
    return _knowing_the_layer(look_back, fetch, lambda cache, layer: fetch(cache, layer - 1))


@mutant("look_back", "fetch", site="2.cache", witness=steps(1, 1, **THREE))
def sees_the_call_alone(look_back, fetch):
    """The pair that is shared is that of the call: what was stored before it is blank."""

    def blank(cache, layer):
        pair = tuple(x.clone() for x in fetch(cache, layer))
        for x in pair:
            x[:, :, : cache.length] = 0
        return pair

    return _knowing_the_layer(look_back, fetch, blank)


@mutant(
    "project",
    "fetch",
    site="2.cache",
    witness=steps(1, cache="static", **THREE),
    needs={"cache": ("static", "paged", "prefix")},
)
def stores_keys_of_its_own(project, fetch):
    """The last layer writes its own keys and values over those that it shares."""
    last: tuple[Any, ...] = (0,)

    def keeping(config, weights, layer, normed, index):
        nonlocal last
        query, key, value = project(config, weights, layer, normed, index)
        last = layer, key, value
        return query, key, value

    def fetched(cache, layer):
        if last[0] != layer:
            cache.storage.write(layer, cache.length, last[1], last[2])
        return fetch(cache, layer)

    return keeping, fetched
