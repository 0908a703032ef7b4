"""Wrong norm: the cached path skips a norm, or computes it otherwise than the uncached path."""

import torch

from kvfuzz.subjects.zoo.weights import Norm
from mutants.mutant import mutant, steps


@mutant("attention_norm", site="0.norm", witness=steps(1))
def skips_before_attention(real):
    """The norm before attention is skipped."""
    return lambda config, weights, layer, x: x


@mutant("mlp_norm", site="0.mlp_norm", witness=steps(1))
def skips_before_the_mlp(real):
    """The norm before the MLP is skipped."""
    return lambda config, weights, layer, x: x


@mutant("final_norm", site="final_norm", witness=steps(1))
def skips_before_the_readout(real):
    """The final norm is skipped."""
    return lambda config, weights, x: x


@mutant("attention_norm", site="0.norm", witness=steps(1))
def skips_on_single_tokens(real):
    """A call of one token skips the norm before attention."""
    return lambda config, weights, layer, x: (
        x if x.shape[1] == 1 else real(config, weights, layer, x)
    )


@mutant("position_index", "attention_norm", site="0.norm", witness=steps(1, 2))
def skips_on_later_chunks(position_index, attention_norm):
    """A later chunk of several tokens skips the norm before attention."""
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
    """Keys are projected without the norm before attention; queries and values with it."""
    return _mixed(attention_norm, project, lambda plain, raw: (plain[0], raw[1], plain[2]))


@mutant("attention_norm", "project", site="0.kv", witness=steps(1))
def skips_for_values(attention_norm, project):
    """Values are projected without the norm before attention; queries and keys with it."""
    return _mixed(attention_norm, project, lambda plain, raw: (plain[0], plain[1], raw[2]))


@mutant("attention_norm", site="1.norm", witness=steps(1), needs={"layers": (2, 3)})
def skips_in_the_second_layer(real):
    """The second layer skips the norm before attention."""
    return lambda config, weights, layer, x: x if layer == 1 else real(config, weights, layer, x)


@mutant("attention_norm", site="0.norm", witness=steps(1))
def normalises_twice(real):
    """The norm before attention is applied twice."""
    return lambda config, weights, layer, x: real(
        config, weights, layer, real(config, weights, layer, x)
    )


@mutant("attention_norm", "mlp_norm", site="0.norm", witness=steps(1))
def exchanges_the_two_of_a_layer(attention_norm, mlp_norm):
    """Each layer swaps the norm before attention with the one before the MLP."""
    return mlp_norm, attention_norm


@mutant("attention_norm", site="0.norm", witness=steps(2))
def statistics_of_the_first_token(real):
    """All tokens of a chunk are normalised with the statistics of the first one."""

    def norm(config, weights, layer, x):
        first = x[:, :1]
        whole = real(config, weights, layer, first)
        gain = weights.layers[layer].attention_norm.gain
        spread = _spread(config, first)
        return whole + (x - first) / spread * gain

    return norm


@mutant("final_norm", site="final_norm", witness=steps(1))
def skips_before_the_readout_on_single_tokens(real):
    """A call of one token skips the final norm."""
    return lambda config, weights, x: x if x.shape[1] == 1 else real(config, weights, x)


@mutant("final_norm", site="final_norm", witness=steps(1))
def forgets_the_gain_before_the_readout(real):
    """The final norm does not multiply by its learned gain."""

    def norm(config, weights, x):
        norm = weights.final_norm
        plain = Norm(torch.ones_like(norm.gain), norm.bias)
        return real(config, _with_final_norm(weights, plain), x)

    return norm


def _mixed(attention_norm, project, choose):
    """Returns a norm that remembers its input, and a projection in which `choose` picks from the
    query, key and value of the norm's output and those of its input."""
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
    """Returns the divisor [batch, 1, 1] that the norm of `x` [batch, 1, width] applies."""
    centred = x - x.mean(-1, keepdim=True) if config.norm == "layernorm" else x
    return (centred.square().mean(-1, keepdim=True) + 1e-5).sqrt()


def _with_final_norm(weights, norm):
    return type(weights)(weights.token, weights.position, weights.layers, norm)
