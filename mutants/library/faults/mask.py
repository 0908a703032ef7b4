"""Wrong mask: attention sees entries that it should not see, or misses some that it should."""

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
    """A fraction `size` of the attention weight is spread evenly over all visible slots."""

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
    """The causal mask of a call starts at the first slot, as if the cache were empty: a single new
    token sees only that slot."""
    return lambda config, index, slots: real(config, index - index[..., :1], slots)


def _places_of(index, keys):
    """Returns the positions of the new tokens, and of the entries in `keys`."""
    return index if isinstance(index, Places) else (index, torch.arange(keys.shape[2]))


PLAIN = {"mix": ("uniform",), "window": (None,), "cache": ("concatenated", "static", "paged")}


def _not_causal(real, calls):
    """Returns a mask in which each token sees its whole call and everything before it, where
    `calls` holds for the positions of the call."""

    def visible(config, index, slots):
        seen = real(config, index, slots)
        if not calls(index):
            return seen
        return seen | (distances(index.amax(-1, keepdim=True).expand_as(index), slots) >= 0)

    return visible


def is_later(index):
    """Whether no row of a call at the positions `index` starts at position 0."""
    return bool((index.amin(-1) > 0).all())


@mutant("visible", site="0.attention", witness=steps(1, 2), seen_in="QwenLM/Qwen#979", needs=PLAIN)
def not_causal_in_a_later_chunk(real):
    """In a later chunk, each token sees the whole chunk: there is no causal mask within it."""
    return _not_causal(real, is_later)


@mutant("visible", site="0.attention", witness=steps(2), seen_in="Mikyx-1/TinyLLM#18", needs=PLAIN)
def not_causal_in_a_prompt(real):
    """A prompt is fed with a cache and therefore treated as a decode step: without a causal mask,
    each of its tokens sees the whole prompt."""
    return _not_causal(real, lambda index: not is_later(index))


@mutant(
    "visible",
    site="0.attention",
    witness=steps(2, positions="alibi"),
    seen_in="huggingface/transformers#30123",
    needs={**PLAIN, "positions": ("alibi",)},
)
def makes_way_for_the_penalty(real):
    """Without a mask argument, the ALiBi penalty replaces the causal mask: each token sees its
    whole call."""
    return _not_causal(real, lambda index: index.dim() == 1)


@mutant(
    "visible",
    site="0.attention",
    witness=steps(1, 2),
    seen_in="hyprstream/hyprstream#1521",
    needs={"mix": ("uniform", "alternating")},
)
def aligned_at_the_first_slot_in_a_chunk(real):
    """The causal mask of a later chunk is a square aligned at the first slot: its token i sees only
    slots 0 to i."""

    def visible(config, index, slots):
        first = index[..., :1] if index.shape[-1] > 1 else 0
        return real(config, index - first, slots)

    return visible


@mutant(
    "attend",
    equivalent="a masked entry gets no attention weight, whatever it holds",
)
def wipes_what_the_call_does_not_see(real):
    """Entries that are masked for every token of a call are replaced by zeros in that call."""

    def attend(config, weights, layer, query, keys, values, index):
        queries, slots = _places_of(index, keys)
        seen = cached.visible(config.at(layer), queries, slots).any(-2)[..., None]
        keys, values = (torch.where(seen, x, 0) for x in (keys, values))
        return real(config, weights, layer, query, keys, values, index)

    return attend
