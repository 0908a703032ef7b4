"""Faults in the keys and values that a cache holds."""

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
    """Exchanges the contents of two tensors of the same shape."""
    held = one.clone()
    one.copy_(other)
    other.copy_(held)


def first_and_last(cache: CacheContents) -> tuple[Any, Any] | None:
    """Returns the first and the last layer; None if these are not two with keys of the same
    shape."""
    if len(cache.layers) < 2 or cache.layers[0][0].shape != cache.layers[-1][0].shape:
        return None
    return cache.layers[0], cache.layers[-1]


@wrong(equivalent_if=one_layer, lacks="no two layers hold entries of the same shape")
def layers_swapped(cache: CacheContents) -> None:
    """The first and the last layer swap their entries."""
    found = first_and_last(cache)
    if found is not None and found[0][1].shape == found[1][1].shape:
        for one, other in zip(*found, strict=True):
            swapped(one, other)


@wrong(equivalent_if=one_layer, lacks="no two layers hold entries of the same shape")
def last_layer_has_those_of_the_first(cache: CacheContents) -> None:
    """The last layer holds the keys of the first layer."""
    found = first_and_last(cache)
    if found is not None:
        found[1][0].copy_(found[0][0])


@wrong(lacks="no layer has keys and values of the same shape")
def keys_stored_as_values(cache: CacheContents) -> None:
    """The values of every layer are those of its keys."""
    for keys, values in cache.layers:
        if keys.shape == values.shape:
            values.copy_(keys)


@wrong(lacks="no layer has keys and values of the same shape")
def keys_and_values_swapped(cache: CacheContents) -> None:
    """A call of one token stores its keys as values and its values as keys."""
    for keys, values in cache.layers:
        if keys.shape == values.shape and cache.new == 1:
            swapped(keys[:, :, -1], values[:, :, -1])


@wrong()
def last_overwritten_by_the_one_before(cache: CacheContents) -> None:
    """Each call overwrites the newest entry with the one before it."""
    for keys, values in cache.layers:
        keys[:, :, -1] = keys[:, :, -2:][:, :, 0]
        values[:, :, -1] = values[:, :, -2:][:, :, 0]


@wrong()
def oldest_is_nought(cache: CacheContents) -> None:
    """Each call overwrites the oldest entry of every layer with zeros."""
    for keys, values in cache.layers:
        keys[:, :, 0], values[:, :, 0] = 0, 0


@wrong()
def newest_is_nought(cache: CacheContents) -> None:
    """The last entry of each call is stored as zeros."""
    for keys, values in cache.layers:
        keys[:, :, -1], values[:, :, -1] = 0, 0


@wrong()
def newest_value_is_nought_in_the_last_layer(cache: CacheContents) -> None:
    """The last layer stores zeros for the value of each call's last token."""
    if cache.layers:
        cache.layers[-1][1][:, :, -1] = 0


@wrong(advice=MANY)
def first_of_a_chunk_alone(cache: CacheContents) -> None:
    """A call of several tokens stores only the first one, and zeros for the others."""
    for keys, values in cache.layers:
        if cache.new > 1:
            keys[:, :, -cache.new :][:, :, 1:] = 0
            values[:, :, -cache.new :][:, :, 1:] = 0


@wrong(advice=MANY)
def values_backwards_in_the_chunk(cache: CacheContents) -> None:
    """The values of a call are stored in reverse order, its keys in the right one."""
    for _, values in cache.layers:
        new = values[:, :, -cache.new :]
        new.copy_(new.flip(2))


@wrong(equivalent_if=orderless, advice="draw padding or a full window")
def keys_and_values_backwards(cache: CacheContents) -> None:
    """Each call reverses the order of all stored entries, keys and values alike."""
    for pair in cache.layers:
        for part in pair:
            part.copy_(part.flip(2))


@wrong()
def values_one_behind_keys(cache: CacheContents) -> None:
    """Each call shifts all stored values by one slot; the last one wraps around to the first
    slot."""
    for _, values in cache.layers:
        values.copy_(values.roll(1, 2))


@wrong(equivalent_if=in_bfloat16)
def values_rounded_to_bfloat16(cache: CacheContents) -> None:
    """Values are stored in bfloat16, whatever the dtype of the model."""
    for _, values in cache.layers:
        values.copy_(values.bfloat16())


@wrong(equivalent_if=in_bfloat16)
def keys_rounded_to_bfloat16(cache: CacheContents) -> None:
    """Keys are stored in bfloat16, whatever the dtype of the model."""
    for keys, _ in cache.layers:
        keys.copy_(keys.bfloat16())


@wrong()
def rounded_to_int8(cache: CacheContents) -> None:
    """Keys and values are rounded to int8, with a scale per row and head (absmax / 127)."""
    for pair in cache.layers:
        for part in pair:
            step = part.abs().amax((2, 3), keepdim=True).clamp_min(1e-30) / 127
            part.copy_((part / step).round() * step)


@wrong(equivalent_if=one_head)
def heads_of_values_permuted(cache: CacheContents) -> None:
    """The values of each head are stored in the next head."""
    for _, values in cache.layers:
        values.copy_(values.roll(1, 1))


@wrong(equivalent_if=one_head)
def heads_of_keys_permuted_in_the_last_layer(cache: CacheContents) -> None:
    """In the last layer, the keys of each head are stored in the next head."""
    if cache.layers:
        keys = cache.layers[-1][0]
        keys.copy_(keys.roll(1, 1))


@wrong()
def features_permuted(cache: CacheContents) -> None:
    """The features of every stored value are shifted by one."""
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
    """In the last layer, all rows hold the entries of the first row."""
    for part in cache.layers[-1] if cache.layers else ():
        part.copy_(part[:1].clone().expand_as(part))
