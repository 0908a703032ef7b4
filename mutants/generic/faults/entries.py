"""What a cache holds is not what was computed: keys and values of its layers."""

from __future__ import annotations

import functools
from typing import Any

from torch import Tensor

from mutants.generic.cache_contents import Stored
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


def first_and_last(held: Stored) -> tuple[Any, Any] | None:
    """The first and the last layer, where these are two with entries of one shape."""
    if len(held.layers) < 2 or held.layers[0][0].shape != held.layers[-1][0].shape:
        return None
    return held.layers[0], held.layers[-1]


@wrong(blind=one_layer, lacks="no two layers hold entries of one shape")
def layers_swapped(held: Stored) -> None:
    """The first and the last layer have each other's entries."""
    found = first_and_last(held)
    if found is not None and found[0][1].shape == found[1][1].shape:
        for one, other in zip(*found, strict=True):
            swapped(one, other)


@wrong(blind=one_layer, lacks="no two layers hold entries of one shape")
def last_layer_has_those_of_the_first(held: Stored) -> None:
    """The last layer's keys are those of the first."""
    found = first_and_last(held)
    if found is not None:
        found[1][0].copy_(found[0][0])


@wrong(lacks="no layer has keys and values of one shape")
def keys_stored_as_values(held: Stored) -> None:
    """The keys are stored as values too."""
    for keys, values in held.layers:
        if keys.shape == values.shape:
            values.copy_(keys)


@wrong(lacks="no layer has keys and values of one shape")
def keys_and_values_swapped(held: Stored) -> None:
    """Keys are stored as values, and values as keys, by every call that feeds one token."""
    for keys, values in held.layers:
        if keys.shape == values.shape and held.new == 1:
            swapped(keys[:, :, -1], values[:, :, -1])


@wrong()
def last_overwritten_by_the_one_before(held: Stored) -> None:
    """The newest entry is a copy of the one before it."""
    for keys, values in held.layers:
        keys[:, :, -1] = keys[:, :, -2:][:, :, 0]
        values[:, :, -1] = values[:, :, -2:][:, :, 0]


@wrong()
def oldest_is_nought(held: Stored) -> None:
    """The oldest entry of every layer is overwritten with noughts after each call."""
    for keys, values in held.layers:
        keys[:, :, 0], values[:, :, 0] = 0, 0


@wrong()
def newest_is_nought(held: Stored) -> None:
    """The last entry of each call is left at nought."""
    for keys, values in held.layers:
        keys[:, :, -1], values[:, :, -1] = 0, 0


@wrong()
def newest_value_is_nought_in_the_last_layer(held: Stored) -> None:
    """The last layer does not store the value of a call's last token."""
    if held.layers:
        held.layers[-1][1][:, :, -1] = 0


@wrong(advice=MANY)
def first_of_a_chunk_alone(held: Stored) -> None:
    """Of a call of several tokens the first is stored, and noughts for the others."""
    for keys, values in held.layers:
        if held.new > 1:
            keys[:, :, -held.new :][:, :, 1:] = 0
            values[:, :, -held.new :][:, :, 1:] = 0


@wrong(advice=MANY)
def values_backwards_in_the_chunk(held: Stored) -> None:
    """The values of a call are stored backwards, its keys in order."""
    for _, values in held.layers:
        new = values[:, :, -held.new :]
        new.copy_(new.flip(2))


@wrong(blind=orderless, advice="draw padding or a full window")
def keys_and_values_backwards(held: Stored) -> None:
    """All entries stand backwards after a call, keys and values alike."""
    for pair in held.layers:
        for part in pair:
            part.copy_(part.flip(2))


@wrong()
def values_one_behind_keys(held: Stored) -> None:
    """Each value is moved on by one slot, the last to the first."""
    for _, values in held.layers:
        values.copy_(values.roll(1, 2))


@wrong(blind=in_bfloat16)
def values_rounded_to_bfloat16(held: Stored) -> None:
    """Values are stored in bfloat16, whatever the model computes in."""
    for _, values in held.layers:
        values.copy_(values.bfloat16())


@wrong(blind=in_bfloat16)
def keys_rounded_to_bfloat16(held: Stored) -> None:
    """Keys are stored in bfloat16, whatever the model computes in."""
    for keys, _ in held.layers:
        keys.copy_(keys.bfloat16())


@wrong()
def rounded_to_int8(held: Stored) -> None:
    """Keys and values are stored as multiples of a 127th of the largest entry of their head."""
    for pair in held.layers:
        for part in pair:
            step = part.abs().amax((2, 3), keepdim=True).clamp_min(1e-30) / 127
            part.copy_((part / step).round() * step)


@wrong(blind=one_head)
def heads_of_values_permuted(held: Stored) -> None:
    """Each head's values are stored as those of the next head."""
    for _, values in held.layers:
        values.copy_(values.roll(1, 1))


@wrong(blind=one_head)
def heads_of_keys_permuted_in_the_last_layer(held: Stored) -> None:
    """In the last layer each head's keys are stored as those of the next head."""
    if held.layers:
        keys = held.layers[-1][0]
        keys.copy_(keys.roll(1, 1))


@wrong()
def features_permuted(held: Stored) -> None:
    """The features of every value are stored one place further on."""
    for _, values in held.layers:
        values.copy_(values.roll(1, 3))


@wrong(advice=ROWS)
def rows_crossed(held: Stored) -> None:
    """Each row holds the entries of the row before it."""
    for pair in held.layers:
        for part in pair:
            part.copy_(part.roll(1, 0))


@wrong(advice=ROWS)
def of_the_first_row_in_the_last_layer(held: Stored) -> None:
    """In the last layer all rows hold the first one's entries."""
    for part in held.layers[-1] if held.layers else ():
        part.copy_(part[:1].clone().expand_as(part))
