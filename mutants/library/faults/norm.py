"""Skipped norm: the cached path normalises less, or otherwise, than the uncached one."""

import torch

from kvfuzz.subjects.zoo.weights import Norm
from mutants.mutant import mutant, steps


@mutant("attention_norm", site="0.norm", witness=steps(1))
def skips_before_attention(real):
    """The record goes into the projections as it is."""
    return lambda config, weights, layer, x: x


@mutant("mlp_norm", site="0.mlp_norm", witness=steps(1))
def skips_before_the_mlp(real):
    """The record goes into the MLP as it is."""
    return lambda config, weights, layer, x: x


@mutant("final_norm", site="final_norm", witness=steps(1))
def skips_before_the_readout(real):
    """The record goes into the readout as it is."""
    return lambda config, weights, x: x


@mutant("attention_norm", site="0.norm", witness=steps(1))
def skips_on_single_tokens(real):
    """A call of one token is not normalised before attention."""
    return lambda config, weights, layer, x: (
        x if x.shape[1] == 1 else real(config, weights, layer, x)
    )


@mutant("position_index", "attention_norm", site="0.norm", witness=steps(1, 2))
def skips_on_later_chunks(position_index, attention_norm):
    """A later call of several tokens is not normalised before attention."""
    filled = False

    def watching_index(config, cache, tokens):
        nonlocal filled
        filled = cache.length > 0
        return position_index(config, cache, tokens)

    def norm(config, weights, layer, x):
        return x if filled and x.shape[1] > 1 else attention_norm(config, weights, layer, x)

    return watching_index, norm


@mutant("attention_norm", "project", site="0.kv", witness=steps(2))
def skips_for_keys(attention_norm, project):
    """Keys are made from the record before its normalisation; queries and values after it."""
    return _mixed(attention_norm, project, lambda plain, raw: (plain[0], raw[1], plain[2]))


@mutant("attention_norm", "project", site="0.kv", witness=steps(1))
def skips_for_values(attention_norm, project):
    """Values are made from the record before its normalisation; queries and keys after it."""
    return _mixed(attention_norm, project, lambda plain, raw: (plain[0], plain[1], raw[2]))


@mutant("attention_norm", site="1.norm", witness=steps(1), needs={"layers": (2, 3)})
def skips_in_the_second_layer(real):
    """The second layer does not normalise before attention."""
    return lambda config, weights, layer, x: x if layer == 1 else real(config, weights, layer, x)


@mutant("attention_norm", site="0.norm", witness=steps(1))
def normalises_twice(real):
    """The record is normalised before attention, and what comes out once more."""
    return lambda config, weights, layer, x: real(
        config, weights, layer, real(config, weights, layer, x)
    )


@mutant("attention_norm", "mlp_norm", site="0.norm", witness=steps(1))
def exchanges_the_two_of_a_layer(attention_norm, mlp_norm):
    """The norm before attention and the one before the MLP have changed places."""
    return mlp_norm, attention_norm


@mutant("attention_norm", site="0.norm", witness=steps(2))
def statistics_of_the_first_token(real):
    """A chunk is scaled by the statistics of its first token."""

    def norm(config, weights, layer, x):
        first = x[:, :1]
        whole = real(config, weights, layer, first)
        gain = weights.layers[layer].attention_norm.gain
        spread = _spread(config, first)
        return whole + (x - first) / spread * gain

    return norm


@mutant("final_norm", site="final_norm", witness=steps(1))
def skips_before_the_readout_on_single_tokens(real):
    """A call of one token is not normalised before the readout."""
    return lambda config, weights, x: x if x.shape[1] == 1 else real(config, weights, x)


@mutant("final_norm", site="final_norm", witness=steps(1))
def forgets_the_gain_before_the_readout(real):
    """The final normalisation leaves its learned gain out."""

    def norm(config, weights, x):
        norm = weights.final_norm
        plain = Norm(torch.ones_like(norm.gain), norm.bias)
        return real(config, _with_final_norm(weights, plain), x)

    return norm


def _mixed(attention_norm, project, choose):
    """A norm that remembers its record, and a projection that chooses from the query, key and
    value of the normalised record and those of the raw one."""
    record = None

    def watching_norm(config, weights, layer, x):
        nonlocal record
        record = x
        return attention_norm(config, weights, layer, x)

    def mixed(config, weights, layer, normed, index):
        plain, raw = (project(config, weights, layer, x, index) for x in (normed, record))
        return choose(plain, raw)

    return watching_norm, mixed


def _spread(config, x):
    """What `x` [batch, 1, width] is divided by in its normalisation [batch, 1, 1]."""
    centred = x - x.mean(-1, keepdim=True) if config.norm == "layernorm" else x
    return (centred.square().mean(-1, keepdim=True) + 1e-5).sqrt()


def _with_final_norm(weights, norm):
    return type(weights)(weights.token, weights.position, weights.layers, norm)
