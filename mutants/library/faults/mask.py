"""Wrong mask: attention reaches where it should not, or not where it should."""

import torch

from kvfuzz.subjects.zoo import cached
from kvfuzz.subjects.zoo.places import Places, distances
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


def _places_of(index, keys):
    """The positions of the new tokens, and those of the entries that `keys` has."""
    return index if isinstance(index, Places) else (index, torch.arange(keys.shape[2]))


PLAIN = {"mix": ("uniform",), "window": (None,), "cache": ("concatenated", "static", "paged")}


def _not_causal(real, calls):
    """A mask by which each token of the `calls` sees its whole call, and all before it."""

    def visible(config, index, slots):
        seen = real(config, index, slots)
        if not calls(index):
            return seen
        return seen | (distances(index.amax(-1, keepdim=True).expand_as(index), slots) >= 0)

    return visible


def is_later(index):
    """Whether no row of a call with the positions `index` is at its beginning."""
    return bool((index.amin(-1) > 0).all())


@mutant("visible", site="0.attention", witness=steps(1, 2), seen_in="QwenLM/Qwen#979", needs=PLAIN)
def not_causal_in_a_later_chunk(real):
    """Once there is something in the cache, each token of a chunk sees the whole chunk."""
    return _not_causal(real, is_later)


@mutant("visible", site="0.attention", witness=steps(2), seen_in="Mikyx-1/TinyLLM#18", needs=PLAIN)
def not_causal_in_a_prompt(real):
    """A prompt comes with a cache, and is taken for a single token: each of its tokens sees the
    whole prompt."""
    return _not_causal(real, lambda index: not is_later(index))


@mutant(
    "visible",
    site="0.attention",
    witness=steps(2, positions="alibi"),
    seen_in="huggingface/transformers#30123",
    needs={**PLAIN, "positions": ("alibi",)},
)
def makes_way_for_the_penalty(real):
    """Without a mask from outside the penalty for distance is all the mask that there is: each
    token of a call sees the whole call."""
    return _not_causal(real, lambda index: index.dim() == 1)


@mutant(
    "visible",
    site="0.attention",
    witness=steps(1, 2),
    seen_in="hyprstream/hyprstream#1521",
    needs={"mix": ("uniform", "alternating")},
)
def aligned_at_the_first_slot_in_a_chunk(real):
    """The causal mask of several tokens is a square at the first slot: they do not see what is
    between that and them."""

    def visible(config, index, slots):
        first = index[..., :1] if index.shape[-1] > 1 else 0
        return real(config, index - first, slots)

    return visible


@mutant(
    "attend",
    equivalent="a hidden entry has no share of the attention, whatever it holds",
)
def wipes_what_the_call_does_not_see(real):
    """Keys and values that are hidden from every token of a call are noughts to it."""

    def attend(config, weights, layer, query, keys, values, index):
        queries, slots = _places_of(index, keys)
        seen = cached.visible(config.at(layer), queries, slots).any(-2)[..., None]
        keys, values = (torch.where(seen, x, 0) for x in (keys, values))
        return real(config, weights, layer, query, keys, values, index)

    return attend
