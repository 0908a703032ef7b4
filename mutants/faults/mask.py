"""Wrong mask: attention reaches where it should not, or not where it should."""

from kvfuzz.zoo.places import distances
from mutants.mutant import mutant, steps


@mutant(
    "attend",
    site="0.attention",
    witness=steps(1, 1),
    sizes={"float64": 1e-12, "float32": 1e-4},
)
def leaks_attention_mass(real, size):
    """A share of the attention, its size, is spread evenly over all visible slots, as if a mask
    were added a little too softly."""

    def attend(config, weights, layer, query, keys, values, index):
        exact = real(config, weights, layer, query, keys, values, index)
        even = real(config, weights, layer, 0 * query, keys, values, index)
        return (1 - size) * exact + size * even

    return attend


@mutant(
    "visible",
    site="0.attention",
    witness=steps(1, 1),
    seen_in="lucidrains/x-transformers#187",
)
def aligned_at_the_first_slot(real):
    """The causal mask of a call begins at the first slot: one new token sees that alone."""
    return lambda config, index, slots: real(config, index - index[..., :1], slots)


@mutant(
    "visible",
    site="0.attention",
    witness=steps(1, 2),
    seen_in="QwenLM/Qwen#979",
    needs={"mix": ("uniform",), "window": (None,), "cache": ("concatenated", "static", "paged")},
)
def not_causal_in_a_later_chunk(real):
    """Once there is something in the cache, each token of a chunk sees the whole chunk."""

    def visible(config, index, slots):
        seen = real(config, index, slots)
        if index.shape[-1] == 1 or not bool((index.amin(-1) > 0).all()):
            return seen
        return seen | (distances(index.amax(-1, keepdim=True).expand_as(index), slots) >= 0)

    return visible
