"""Wrong phase: RoPE rotates by the wrong angles, or ALiBi applies the wrong penalty."""

from dataclasses import replace
from typing import Any

import torch

from kvfuzz.subjects.zoo import cached, maths
from kvfuzz.subjects.zoo.places import Places, distances
from mutants.mutant import mutant, steps

ROPE: dict[str, Any] = {"positions": ("rope",)}
PAIRS: dict[str, Any] = {"positions": ("rope",), "head_dim": (4, 8)}
"""There is more than one pair to rotate, each with its own frequency."""
TURNED: dict[str, Any] = {**PAIRS, "mix": ("uniform", "alternating")}
PAIRED: dict[str, Any] = {"positions": "rope", "head_dim": 4}
ALIBI: dict[str, Any] = {"positions": ("alibi",)}


@mutant(
    "rope_angles",
    site="0.kv",
    witness=steps(1, 1, positions="rope"),
    needs={"positions": ("rope",)},
    sizes={"float64": 1e-12, "float32": 3e-4},
)
def angles_too_large(real, size):
    """Every RoPE angle is too large by a factor of 1 + size."""
    return lambda config, index, like: real(config, index, like) * (1 + size)


@mutant(
    "alibi_bias",
    site="0.attention",
    witness=steps(1, 1, 1, positions="alibi"),
    needs={"positions": ("alibi",)},
    sizes={"float64": 1e-11, "float32": 1e-3},
)
def slopes_too_large(real, size):
    """Every ALiBi penalty is too large by a factor of 1 + size."""
    return lambda config, index, slots, like: real(config, index, slots, like) * (1 + size)


@mutant(
    "alibi_bias",
    site="0.attention",
    witness=steps(1, 1, positions="alibi"),
    seen_in="keras-team/keras-hub#2977",
    needs={"positions": ("alibi",)},
)
def no_penalty_for_distance_on_decode(real):
    """A call of one token applies no ALiBi penalty."""

    def bias(config, index, slots, like):
        found = real(config, index, slots, like)
        return found * 0 if index.shape[-1] == 1 else found

    return bias


@mutant(
    "alibi_bias",
    site="0.attention",
    witness=steps(1, 1, positions="alibi"),
    seen_in="lucidrains/x-transformers#103",
    needs=ALIBI,
)
def distances_are_counted_from_the_call(real):
    """ALiBi measures distances from a token's index in its call, not from its position."""

    def bias(config, index, slots, like):
        distance = distances(index - index[..., :1], slots).abs()
        return -maths.alibi_slopes(config.heads, like) * distance.to(like.dtype)

    return bias


@mutant(
    "rope_angles",
    site="0.kv",
    witness=steps(1, 1, positions="rope"),
    seen_in="lucidrains/rotary-embedding-torch#11",
    needs=ROPE,
)
def keeps_the_angles_of_a_length(real):
    """RoPE angles are memoised by the number of tokens alone: a call reuses those of the first call
    of the same length."""
    kept: dict[Any, Any] = {}
    return lambda config, index, like: kept.setdefault(index.shape, real(config, index, like))


@mutant(
    "attend",
    site="0.attention",
    witness=steps(2, positions="rope"),
    seen_in="NeuraLegion/shainet#110",
    needs=ROPE,
)
def turns_cached_keys_again(real):
    """Cached keys are already rotated, and every read rotates them again."""

    def attend(config, weights, layer, query, keys, values, index):
        here = torch.arange(keys.shape[2])
        slots = index.entries if isinstance(index, Places) else here
        again = maths.rotated(keys, cached.rope_angles(config, slots, keys))
        return real(config, weights, layer, query, again, values, index)

    return attend


@mutant(
    "project",
    site="0.kv",
    witness=steps(2, positions="rope"),
    seen_in="ml-explore/mlx-lm#1806",
    needs={**ROPE, "mix": ("uniform", "alternating")},
)
def turns_queries_at_the_new_length(real):
    """Queries are rotated after the cache length has advanced, keys before: queries are too far by
    the number of tokens in the call."""

    def project(config, weights, layer, normed, index):
        late, _, _ = real(config, weights, layer, normed, index + index.shape[-1])
        return late, *real(config, weights, layer, normed, index)[1:]

    return project


def _turned(real, rotated):
    """Returns a projection in which `rotated` rotates queries and keys."""

    def project(config, weights, layer, normed, index):
        plain = replace(config, positions="none")
        query, key, value = real(plain, weights, layer, normed, index)
        angles = cached.rope_angles(config, index, normed)
        return rotated(query, angles), rotated(key, angles), value

    return project


@mutant(
    "project",
    site="0.kv",
    witness=steps(1, 1, **PAIRED),
    seen_in="raiyanyahya/how-to-train-your-gpt#7",
    needs=TURNED,
)
def angles_are_those_of_neighbours(real):
    """Features are paired as (i, i + half), but get the angles of interleaved pairs: the two of a
    pair are rotated by different angles."""

    def rotated(x, angles):
        low, high = x.chunk(2, dim=-1)
        cos, sin = (each.repeat_interleave(2, -1) for each in (angles.cos(), angles.sin()))
        return x * cos + torch.cat((-high, low), dim=-1) * sin

    return _turned(real, rotated)


@mutant("project", site="0.kv", witness=steps(1, 1, **PAIRED), needs=TURNED)
def pairs_neighbours(real):
    """RoPE rotates interleaved pairs (2i, 2i + 1), but the weights expect (i, i + half)."""

    def rotated(x, angles):
        first, second = x[..., ::2], x[..., 1::2]
        cos, sin = angles.cos(), angles.sin()
        turned = (first * cos - second * sin, first * sin + second * cos)
        return torch.stack(turned, dim=-1).flatten(-2)

    return _turned(real, rotated)


@mutant(
    "rope_angles",
    site="0.kv",
    witness=steps(1, 1, **PAIRED),
    seen_in="pie-project/pie#603",
    needs=PAIRS,
)
def frequencies_are_those_of_a_wider_head(real):
    """RoPE frequencies are those of a head twice as wide."""

    def angles(config, index, like):
        wide = maths.rope_frequencies(2 * config.head_dim, like)[: config.head_dim // 2]
        return real(config, index, like) * wide / maths.rope_frequencies(config.head_dim, like)

    return angles


@mutant("rope_angles", site="0.kv", witness=steps(1, 1, **PAIRED), needs=PAIRS)
def turns_the_first_pairs_alone(real):
    """RoPE rotates only the first half of the pairs, as in a partial rotary embedding."""

    def angles(config, index, like):
        found = real(config, index, like).clone()
        found[..., config.head_dim // 4 :] = 0
        return found

    return angles


@mutant("rope_angles", site="0.kv", witness=steps(1, 1, **PAIRED), needs=PAIRS)
def interpolates_the_slow_pairs(real):
    """All pairs but the fastest get half their angle, as if YaRN (arXiv 2309.00071) doubled the
    context."""

    def angles(config, index, like):
        found = real(config, index, like)
        return torch.cat((found[..., :1], found[..., 1:] / 2), dim=-1)

    return angles


@mutant(
    "rope_angles",
    site="0.kv",
    witness=steps(4, 1, **PAIRED),
    seen_in="huggingface/transformers#25104",
    needs=PAIRS,
)
def base_grows_with_the_length(real):
    """Past 4 tokens the RoPE base grows with the length (dynamic NTK, arXiv 2309.00071), but stored
    keys keep the angles of the base that they were rotated with."""

    def angles(config, index, like):
        growth = ((index.max() + 1) / 4).clamp(min=1).to(like.dtype)
        pairs = torch.arange(0, config.head_dim, 2, dtype=like.dtype)
        return real(config, index, like) * growth ** (-pairs / (config.head_dim - 2))

    return angles


@mutant(
    "alibi_bias",
    needs=ALIBI,
    seen_in="vllm-project/vllm#945",
    equivalent="all scores of a query are too large by the same amount, its position times the "
    "slope, which the softmax ignores",
)
def weighs_the_place_of_the_key_alone(real):
    """ALiBi adds the slope times the key's position in place of subtracting the slope times the
    distance."""
    return lambda config, index, slots, like: real(config, 0 * index, slots, like)
