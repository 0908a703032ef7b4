"""Wrong projection: queries, keys or values come from the wrong matrix or the wrong head."""

from dataclasses import replace
from typing import Any

from mutants.mutant import mutant, steps

NEEDS = {"mix": ("uniform", "alternating")}
GROUPED: dict[str, Any] = {"heads": (4,), "kv_heads": (2,)}


def _changed(weights, layer, change):
    """Returns `weights` with the matrices of `layer` that `change` returns, by name."""
    layers = list(weights.layers)
    layers[layer] = replace(layers[layer], **change(layers[layer]))
    return replace(weights, layers=tuple(layers))


def _exchanged(matrices):
    """Returns the key and the value matrix, swapped."""
    return {"key": matrices.value, "value": matrices.key}


@mutant("project", site="0.kv", witness=steps(1))
def exchanges_keys_and_values(real):
    """The key matrix and the value matrix are swapped."""
    return lambda config, weights, layer, normed, index: real(
        config, _changed(weights, layer, _exchanged), layer, normed, index
    )


@mutant("project", site="0.kv", witness=steps(1), seen_in="tenstorrent/tt-mlir#8958")
def exchanges_keys_and_values_of_single_tokens(real):
    """A call of one token swaps the key matrix and the value matrix."""

    def project(config, weights, layer, normed, index):
        if normed.shape[1] == 1:
            weights = _changed(weights, layer, _exchanged)
        return real(config, weights, layer, normed, index)

    return project


@mutant("project", site="0.kv", witness=steps(2), needs={"heads": (2,), "kv_heads": (2,)})
def makes_keys_with_the_matrix_of_queries(real):
    """Keys are computed with the query matrix."""

    def project(config, weights, layer, normed, index):
        query, _, value = real(config, weights, layer, normed, index)
        return query, query, value

    return project


@mutant("project", site="0.kv", witness=steps(1))
def splits_heads_the_other_way(real):
    """Features are split as [head_dim, heads], not [heads, head_dim]: each head gets features of
    all heads."""

    def project(config, weights, layer, normed, index):
        def split(matrices):
            named = {"query": matrices.query, "key": matrices.key, "value": matrices.value}
            return {
                name: matrix.unflatten(-1, (config.head_dim, -1)).transpose(-1, -2).flatten(-2)
                for name, matrix in named.items()
            }

        return real(config, _changed(weights, layer, split), layer, normed, index)

    return project


@mutant(
    "attend",
    site="0.attention",
    witness=steps(1, heads=4, kv_heads=2),
    seen_in="ekzhang/jax-js#180",
    needs=GROUPED,
)
def deals_keys_and_values_out_in_turn(real):
    """Query heads use key/value heads in the order 0, 1, 0, 1, not 0, 0, 1, 1: `repeat` in place of
    `repeat_interleave`."""

    def attend(config, weights, layer, query, keys, values, index):
        keys, values = (x.repeat(1, config.heads // x.shape[1], 1, 1) for x in (keys, values))
        return real(config, weights, layer, query, keys, values, index)

    return attend


@mutant("attend", site="0.attention", witness=steps(1, heads=4, kv_heads=2), needs=GROUPED)
def gives_every_group_the_first_head(real):
    """All query heads use the first key/value head."""
    return lambda config, weights, layer, query, keys, values, index: real(
        config, weights, layer, query, keys[:, :1], values[:, :1], index
    )


@mutant("attend", site="0.attention", witness=steps(1))
def puts_heads_together_in_another_order(real):
    """Head outputs reach the output projection shifted by one head."""

    def attend(config, weights, layer, *rest):
        def turned(matrices):
            return {"out": matrices.out.roll(-config.head_dim, 0)}

        return real(config, _changed(weights, layer, turned), layer, *rest)

    return attend
