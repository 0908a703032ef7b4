"""Wrong phase: a position is turned, or weighted, by another angle or slope than its own."""

from dataclasses import replace
from typing import Any

import torch

from kvfuzz.subjects.zoo import cached, maths
from kvfuzz.subjects.zoo.places import Places, distances
from mutants.mutant import mutant, steps

ROPE: dict[str, Any] = {"positions": ("rope",)}
PAIRS: dict[str, Any] = {"positions": ("rope",), "head_dim": (4, 8)}
"""There is more than one pair to turn, each by a frequency of its own."""
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
    """Every rotary angle is too large by a factor of 1 + size."""
    return lambda config, index, like: real(config, index, like) * (1 + size)


@mutant(
    "alibi_bias",
    site="0.attention",
    witness=steps(1, 1, 1, positions="alibi"),
    needs={"positions": ("alibi",)},
    sizes={"float64": 1e-11, "float32": 1e-3},
)
def slopes_too_large(real, size):
    """Every penalty for distance is too large by a factor of 1 + size."""
    return lambda config, index, slots, like: real(config, index, slots, like) * (1 + size)


@mutant(
    "alibi_bias",
    site="0.attention",
    witness=steps(1, 1, positions="alibi"),
    seen_in="keras-team/keras-hub#2977",
    needs={"positions": ("alibi",)},
)
def no_penalty_for_distance_on_decode(real):
    """One new token is penalised for no distance at all, though there is a past."""

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
    """The penalty is for the distance to a token's place in its call, whatever came before it."""

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
    """Angles are kept by the number of tokens alone: a call has those of the first call of as
    many."""
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
    """Keys are stored turned, and turned once more whenever they are read."""

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
    """Queries are turned after the cache has counted the call, keys before: a query is as many
    positions too far as the call has tokens."""

    def project(config, weights, layer, normed, index):
        late, _, _ = real(config, weights, layer, normed, index + index.shape[-1])
        return late, *real(config, weights, layer, normed, index)[1:]

    return project


def _turned(real, rotated):
    """A projection whose queries and keys `rotated` turns."""

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
    """Entry i is paired with the one half a head further, and both are turned by the angles of
    pairs of neighbours: the two of a pair are turned by unlike angles."""

    def rotated(x, angles):
        low, high = x.chunk(2, dim=-1)
        cos, sin = (each.repeat_interleave(2, -1) for each in (angles.cos(), angles.sin()))
        return x * cos + torch.cat((-high, low), dim=-1) * sin

    return _turned(real, rotated)


@mutant("project", site="0.kv", witness=steps(1, 1, **PAIRED), needs=TURNED)
def pairs_neighbours(real):
    """Entries 2i and 2i + 1 are turned as a pair, where the weights are for i and i + half."""

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
    """The exponents of the frequencies are parts of twice the width that is turned."""

    def angles(config, index, like):
        wide = maths.rope_frequencies(2 * config.head_dim, like)[: config.head_dim // 2]
        return real(config, index, like) * wide / maths.rope_frequencies(config.head_dim, like)

    return angles


@mutant("rope_angles", site="0.kv", witness=steps(1, 1, **PAIRED), needs=PAIRS)
def turns_the_first_pairs_alone(real):
    """The second half of the pairs is not turned, as with a partial rotary embedding."""

    def angles(config, index, like):
        found = real(config, index, like).clone()
        found[..., config.head_dim // 4 :] = 0
        return found

    return angles


@mutant("rope_angles", site="0.kv", witness=steps(1, 1, **PAIRED), needs=PAIRS)
def interpolates_the_slow_pairs(real):
    """All pairs but the fastest have half their angles, as if YaRN (arXiv 2309.00071) stretched
    the context to twice its length."""

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
    """Past 4 tokens the base grows with the length (dynamic NTK, arXiv 2309.00071) for the new
    ones, while stored keys keep the angles that the base of their own time gave them."""

    def angles(config, index, like):
        growth = ((index.max() + 1) / 4).clamp(min=1).to(like.dtype)
        pairs = torch.arange(0, config.head_dim, 2, dtype=like.dtype)
        return real(config, index, like) * growth ** (-pairs / (config.head_dim - 2))

    return angles


@mutant(
    "alibi_bias",
    needs=ALIBI,
    seen_in="vllm-project/vllm#945",
    equivalent="a query's scores all differ from the right ones by as much, its own position times "
    "the slope, and the softmax takes that away",
)
def weighs_the_place_of_the_key_alone(real):
    """Keys gain by their position, whatever that of the query is, and lose nothing by distance."""
    return lambda config, index, slots, like: real(config, 0 * index, slots, like)
