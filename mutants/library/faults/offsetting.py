"""Offsetting pairs: two faults of which the second undoes the first, before the logits show it.

The logits are right, and the states between the two faults are not: whoever reads those, or mends
one fault without the other, gets wrong answers. No comparison of logits can tell; that of states
does.
"""

import torch

from mutants.mutant import LATENT, mutant, steps

NEEDS = {"mix": ("uniform", "alternating")}
ONE_SLOT_EACH = {"cache": ("concatenated", "static", "paged", "prefix")}
"""Storage that gives every slot back as it was written, and in order."""
SHIFT = 0.25


@mutant(
    "embed",
    law=LATENT,
    site="position",
    witness=steps(1, 1),
    needs={"norm": ("layernorm",), "positions": ("learned",)},
)
def shifts_a_record_that_every_norm_centres(real):
    """The position record is too large by a constant in all channels, which layer norms remove."""
    return lambda config, weights, tokens, index: real(config, weights, tokens, index) + SHIFT


@mutant("attention_norm", "project", law=LATENT, site="0.norm", witness=steps(1, 1))
def doubles_the_norm_and_halves_what_is_projected(attention_norm, project):
    """The gain of the norm before attention counts twice, and the projections take the half."""

    def norm(config, weights, layer, x):
        return 2 * attention_norm(config, weights, layer, x)

    def projected(config, weights, layer, normed, index):
        return project(config, weights, layer, normed / 2, index)

    return norm, projected


@mutant("project", law=LATENT, site="0.kv", witness=steps(1, 1))
def doubles_keys_and_halves_queries(real):
    """Keys are scaled by 2 and queries by 1/2, as if the scale of attention were in the cache."""

    def project(config, weights, layer, normed, index):
        query, key, value = real(config, weights, layer, normed, index)
        return query / 2, 2 * key, value

    return project


@mutant(
    "rope_angles",
    law=LATENT,
    site="0.kv",
    witness=steps(1, 1, positions="rope"),
    needs={"positions": ("rope",)},
)
def turns_keys_and_queries_one_position_further(real):
    """Keys and queries are both turned as at the next position: only their distance counts."""
    return lambda config, index, like: real(config, index + 1, like)


@mutant(
    "project",
    "attend",
    law=LATENT,
    site="0.kv",
    witness=steps(1, 1),
    needs={"kv_heads": (2,)},
)
def exchanges_the_heads_and_back(project, attend):
    """Key and value heads are stored under each other's number, and read so, with their queries."""

    def projected(config, weights, layer, normed, index):
        query, key, value = project(config, weights, layer, normed, index)
        group = config.heads // config.kv_heads
        return query.roll(group, 1), key.roll(1, 1), value.roll(1, 1)

    def attended(config, weights, layer, query, keys, values, index):
        group = config.heads // config.kv_heads
        query, keys, values = query.roll(-group, 1), keys.roll(-1, 1), values.roll(-1, 1)
        return attend(config, weights, layer, query, keys, values, index)

    return projected, attended


@mutant(
    "store",
    law=LATENT,
    site="0.cache",
    witness=steps(1, 1),
    needs=ONE_SLOT_EACH,
)
def adds_a_constant_to_every_key(real):
    """Every key is too large by the same vector: each query finds all of them nearer by as much,
    and the softmax takes that away."""
    return lambda cache, layer, key, value: real(cache, layer, key + SHIFT, value)


@mutant(
    "store",
    "attend",
    law=LATENT,
    site="0.cache",
    witness=steps(1, 1),
    needs=ONE_SLOT_EACH,
)
def negates_values_and_what_is_made_of_them(store, attend):
    """Values are stored with the wrong sign, and so is what goes into the out projection."""

    def stored(cache, layer, key, value):
        store(cache, layer, key, -value)

    return stored, lambda *args: -attend(*args)


@mutant(
    "fetch",
    law=LATENT,
    site="0.cache",
    witness=steps(2, 1),
    needs={
        **ONE_SLOT_EACH,
        "mix": ("uniform",),
        "window": (None,),
        "positions": ("learned", "rope", "none"),
    },
)
def permutes_keys_and_values_of_the_past_together(real):
    """What was stored before a call is read backwards, keys and values alike: all of it is seen by
    every new token, whatever its order."""

    def backwards(x, past):
        return torch.cat((x[:, :, :past].flip(2), x[:, :, past:]), 2)

    def fetch(cache, layer):
        past = cache.length if cache.places is None else 0
        return tuple(backwards(x, past) for x in real(cache, layer))

    return fetch


@mutant(
    "attention_residual",
    "mlp_norm",
    "mlp_residual",
    law=LATENT,
    site="0.residual",
    witness=steps(1, 1),
)
def adds_to_the_residual_stream_and_takes_it_away(attention_residual, mlp_norm, mlp_residual):
    """The residual after attention is too large by a constant, which the MLP's norm and its
    residual connection subtract."""
    return (
        lambda x, attention: attention_residual(x, attention) + SHIFT,
        lambda config, weights, layer, x: mlp_norm(config, weights, layer, x - SHIFT),
        lambda x, hidden: mlp_residual(x - SHIFT, hidden),
    )


@mutant("mlp", "mlp_residual", law=LATENT, site="0.mlp", witness=steps(1, 1))
def negates_the_mlp_and_subtracts_it(mlp, mlp_residual):
    """The MLP gives its output with the wrong sign, and the residual connection subtracts it."""
    return lambda *args: -mlp(*args), lambda x, hidden: mlp_residual(x, -hidden)


@mutant("final_norm", "readout", law=LATENT, site="final_norm", witness=steps(1, 1))
def doubles_the_final_norm_and_halves_the_readout(final_norm, readout):
    """The gain of the final normalisation counts twice, and the readout takes the half."""
    return (
        lambda *args: 2 * final_norm(*args),
        lambda weights, x: readout(weights, x / 2),
    )
