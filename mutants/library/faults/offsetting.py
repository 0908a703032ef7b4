"""Offsetting pairs: two faults, of which the second undoes the first before the logits.

The logits are right, but the states between the two faults are wrong: whoever reads those states,
or fixes only one fault, gets wrong answers. Comparing logits cannot show it; comparing states does.
"""

import torch

from mutants.mutant import LATENT, mutant, steps

NEEDS = {"mix": ("uniform", "alternating")}
ONE_SLOT_EACH = {"cache": ("concatenated", "static", "paged", "prefix")}
"""Storages that return every slot in order, as it was written."""
SHIFT = 0.25


@mutant(
    "embed",
    law=LATENT,
    site="position",
    witness=steps(1, 1),
    needs={"norm": ("layernorm",), "positions": ("learned",)},
)
def shifts_a_record_that_every_norm_centres(real):
    """The embeddings are too large by a constant in all channels, which every layer norm
    subtracts."""
    return lambda config, weights, tokens, index: real(config, weights, tokens, index) + SHIFT


@mutant("attention_norm", "project", law=LATENT, site="0.norm", witness=steps(1, 1))
def doubles_the_norm_and_halves_what_is_projected(attention_norm, project):
    """The output of the norm before attention is doubled, and the projections halve their input."""

    def norm(config, weights, layer, x):
        return 2 * attention_norm(config, weights, layer, x)

    def projected(config, weights, layer, normed, index):
        return project(config, weights, layer, normed / 2, index)

    return norm, projected


@mutant("project", law=LATENT, site="0.kv", witness=steps(1, 1))
def doubles_keys_and_halves_queries(real):
    """Keys are doubled and queries are halved, so that their products stay the same."""

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
    """RoPE rotates keys and queries as if at the next position; scores depend only on their
    distance."""
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
    """Query, key and value heads are permuted by the projection and permuted back by attention."""

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
    """A constant is added to every stored key: it shifts all scores of a query equally, which the
    softmax ignores."""
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
    """Values are stored negated, and the output of attention is negated again."""

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
    """A call reads the keys and values of its prefix in reverse order; every new token sees all of
    them, so that their order does not matter."""

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
    """A constant is added to the residual stream after attention; the MLP's norm and its residual
    connection subtract it."""
    return (
        lambda x, attention: attention_residual(x, attention) + SHIFT,
        lambda config, weights, layer, x: mlp_norm(config, weights, layer, x - SHIFT),
        lambda x, hidden: mlp_residual(x - SHIFT, hidden),
    )


@mutant("mlp", "mlp_residual", law=LATENT, site="0.mlp", witness=steps(1, 1))
def negates_the_mlp_and_subtracts_it(mlp, mlp_residual):
    """The MLP returns its output negated, and the residual connection subtracts it."""
    return lambda *args: -mlp(*args), lambda x, hidden: mlp_residual(x, -hidden)


@mutant("final_norm", "readout", law=LATENT, site="final_norm", witness=steps(1, 1))
def doubles_the_final_norm_and_halves_the_readout(final_norm, readout):
    """The output of the final norm is doubled, and the readout halves its input."""
    return (
        lambda *args: 2 * final_norm(*args),
        lambda weights, x: readout(weights, x / 2),
    )
