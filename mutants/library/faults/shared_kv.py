"""Wrong sharing between layers: the last layer should read the keys and values of the one
before."""

from typing import Any

from mutants.mutant import mutant, steps

NEEDS = {"mix": ("shared_kv",), "layers": (3,), "cache": ("concatenated", "static", "ring")}
THREE: dict[str, Any] = {"mix": "shared_kv", "layers": 3}


def _knowing_the_layer(look_back, fetch, other):
    """Returns a `look_back` that remembers its layer, and a fetch that calls `other` in the layer
    that reads the entries of another one."""
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
    """The layer that shares reads the layer below its source."""
    return _knowing_the_layer(look_back, fetch, lambda cache, layer: fetch(cache, layer - 1))


@mutant("look_back", "fetch", site="2.cache", witness=steps(1, 1, **THREE))
def sees_the_call_alone(look_back, fetch):
    """The layer that shares sees only the entries of the current call; earlier ones are zeros."""

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
    """The layer that shares overwrites the shared keys and values with its own."""
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


@mutant(
    "project",
    site="2.kv",
    witness=steps(2, positions="rope", **THREE),
    seen_in="ml-explore/mlx-lm#1396",
    needs={"positions": ("rope",)},
)
def turns_its_queries_at_the_new_length(real):
    """The layer that shares reads the length after the call is counted: RoPE rotates its queries
    too far by the number of tokens in the call."""

    def project(config, weights, layer, normed, index):
        late = index.shape[-1] if config.source(layer) != layer else 0
        return real(config, weights, layer, normed, index + late)

    return project


@mutant(
    ".uncached:_attention",
    site="2.cache",
    witness=steps(1, **THREE),
    seen_in="huggingface/transformers#45242",
    both=True,
)
def is_known_to_the_cache_alone(real):
    """Only the cache knows which layer shares: without a cache, the last layer computes its own
    keys and values, from weights that are not meant to be used."""

    def attention(config, number, layer, normed, geometry, given, note):
        def of_the_cached_path(name, number, *parts):
            """Leaves out keys and values, with which the cached path has nothing to compare."""
            note(name, number, *parts[: 1 if name == "kv" and given else None])

        return real(config, number, layer, normed, geometry, None, of_the_cached_path)

    return attention
