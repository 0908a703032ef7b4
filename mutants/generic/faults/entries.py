"""What a cache holds is not what was computed: keys and values of its layers."""

from __future__ import annotations

import functools
from typing import Any

from torch import Tensor

from mutants.generic.cache_contents import CacheContents
from mutants.generic.decorators import contents
from mutants.generic.equivalence_checks import in_bfloat16, one_head, one_layer, orderless

LACKS = "its view shows no keys and values that can be written to"
ADVICE = "feed a filled cache: two calls or more"
MANY = "draw a call of two tokens or more, and another after it"
ROWS = "draw two rows or more"
wrong = functools.partial(contents, offers=("view",), lacks=LACKS, advice=ADVICE)


def swapped(one: Tensor, other: Tensor) -> None:
    """Exchange what two tensors of one shape hold."""
    held = one.clone()
    one.copy_(other)
    other.copy_(held)


def first_and_last(cache: CacheContents) -> tuple[Any, Any] | None:
    """The first and the last layer, where these are two with entries of one shape."""
    if len(cache.layers) < 2 or cache.layers[0][0].shape != cache.layers[-1][0].shape:
        return None
    return cache.layers[0], cache.layers[-1]


@wrong(equivalent_if=one_layer, lacks="no two layers hold entries of one shape")
def layers_swapped(cache: CacheContents) -> None:
    """The first and the last layer have each other's entries."""
    found = first_and_last(cache)
    if found is not None and found[0][1].shape == found[1][1].shape:
        for one, other in zip(*found, strict=True):
            swapped(one, other)


@wrong(equivalent_if=one_layer, lacks="no two layers hold entries of one shape")
def last_layer_has_those_of_the_first(cache: CacheContents) -> None:
    """The last layer's keys are those of the first."""
    found = first_and_last(cache)
    if found is not None:
        found[1][0].copy_(found[0][0])


@wrong(lacks="no layer has keys and values of one shape")
def keys_stored_as_values(cache: CacheContents) -> None:
    """The keys are stored as values too."""
    for keys, values in cache.layers:
        if keys.shape == values.shape:
            values.copy_(keys)


@wrong(lacks="no layer has keys and values of one shape")
def keys_and_values_swapped(cache: CacheContents) -> None:
    """Keys are stored as values, and values as keys, by every call that feeds one token."""
    for keys, values in cache.layers:
        if keys.shape == values.shape and cache.new == 1:
            swapped(keys[:, :, -1], values[:, :, -1])


@wrong()
def last_overwritten_by_the_one_before(cache: CacheContents) -> None:
    """The newest entry is a copy of the one before it."""
    for keys, values in cache.layers:
        keys[:, :, -1] = keys[:, :, -2:][:, :, 0]
        values[:, :, -1] = values[:, :, -2:][:, :, 0]


@wrong()
def oldest_is_nought(cache: CacheContents) -> None:
    """The oldest entry of every layer is overwritten with noughts after each call."""
    for keys, values in cache.layers:
        keys[:, :, 0], values[:, :, 0] = 0, 0


@wrong()
def newest_is_nought(cache: CacheContents) -> None:
    """The last entry of each call is left at zero."""
    for keys, values in cache.layers:
        keys[:, :, -1], values[:, :, -1] = 0, 0


@wrong()
def newest_value_is_nought_in_the_last_layer(cache: CacheContents) -> None:
    """The last layer does not store the value of a call's last token."""
    if cache.layers:
        cache.layers[-1][1][:, :, -1] = 0


@wrong(advice=MANY)
def first_of_a_chunk_alone(cache: CacheContents) -> None:
    """Of a call of several tokens the first is stored, and noughts for the others."""
    for keys, values in cache.layers:
        if cache.new > 1:
            keys[:, :, -cache.new :][:, :, 1:] = 0
            values[:, :, -cache.new :][:, :, 1:] = 0


@wrong(advice=MANY)
def values_backwards_in_the_chunk(cache: CacheContents) -> None:
    """The values of a call are stored backwards, its keys in order."""
    for _, values in cache.layers:
        new = values[:, :, -cache.new :]
        new.copy_(new.flip(2))


@wrong(equivalent_if=orderless, advice="draw padding or a full window")
def keys_and_values_backwards(cache: CacheContents) -> None:
    """All entries stand backwards after a call, keys and values alike."""
    for pair in cache.layers:
        for part in pair:
            part.copy_(part.flip(2))


@wrong()
def values_one_behind_keys(cache: CacheContents) -> None:
    """Each value is moved on by one slot, the last to the first."""
    for _, values in cache.layers:
        values.copy_(values.roll(1, 2))


@wrong(equivalent_if=in_bfloat16)
def values_rounded_to_bfloat16(cache: CacheContents) -> None:
    """Values are stored in bfloat16, whatever the model computes in."""
    for _, values in cache.layers:
        values.copy_(values.bfloat16())


@wrong(equivalent_if=in_bfloat16)
def keys_rounded_to_bfloat16(cache: CacheContents) -> None:
    """Keys are stored in bfloat16, whatever the model computes in."""
    for keys, _ in cache.layers:
        keys.copy_(keys.bfloat16())


@wrong()
def rounded_to_int8(cache: CacheContents) -> None:
    """Keys and values are stored as multiples of a 127th of the largest entry of their head."""
    for pair in cache.layers:
        for part in pair:
            step = part.abs().amax((2, 3), keepdim=True).clamp_min(1e-30) / 127
            part.copy_((part / step).round() * step)


@wrong(equivalent_if=one_head)
def heads_of_values_permuted(cache: CacheContents) -> None:
    """Each head's values are stored as those of the next head."""
    for _, values in cache.layers:
        values.copy_(values.roll(1, 1))


@wrong(equivalent_if=one_head)
def heads_of_keys_permuted_in_the_last_layer(cache: CacheContents) -> None:
    """In the last layer each head's keys are stored as those of the next head."""
    if cache.layers:
        keys = cache.layers[-1][0]
        keys.copy_(keys.roll(1, 1))


@wrong()
def features_permuted(cache: CacheContents) -> None:
    """The features of every value are stored one place further on."""
    for _, values in cache.layers:
        values.copy_(values.roll(1, 3))


@wrong(advice=ROWS)
def rows_crossed(cache: CacheContents) -> None:
    """Each row holds the entries of the row before it."""
    for pair in cache.layers:
        for part in pair:
            part.copy_(part.roll(1, 0))


@wrong(advice=ROWS)
def of_the_first_row_in_the_last_layer(cache: CacheContents) -> None:
    """In the last layer all rows hold the first one's entries."""
    for part in cache.layers[-1] if cache.layers else ():
        part.copy_(part[:1].clone().expand_as(part))
