"""Faults in the operations on a cache: crop, reorder, copy, load, reset and new_cache."""

from __future__ import annotations

import functools
from typing import Any

from mutants.generic.cache_contents import CacheContents, layers_of
from mutants.generic.decorators import contents, operation
from mutants.generic.equivalence_checks import one_layer, unchanging_caches
from mutants.generic.wrapper import Call

LACKS = "its view shows no keys and values that can be written to"
crop = functools.partial(operation, "crop", advice="draw crops")
reorder = functools.partial(operation, "reorder", advice="draw reorders of two rows or more")
loaded = functools.partial(contents, "load", advice="draw cases that save and load a cache")


@crop()
def crops_one_too_many(call: Call) -> Any:
    """crop drops one slot too many."""
    cache, count = call.args
    return call.real(cache, count + 1)


@crop()
def crops_one_too_few(call: Call) -> Any:
    """crop drops one slot too few."""
    cache, count = call.args
    return call.real(cache, count - 1) if count > 1 else cache


@crop()
def crops_nothing(call: Call) -> Any:
    """crop drops nothing."""
    return call.args[0]


@crop()
def crops_everything(call: Call) -> Any:
    """crop drops all slots, however many are asked for."""
    cache, count = call.args
    return call.real(cache, max(count, call.record.slots))


@crop(offers=("crop", "view"), lacks=LACKS)
def crops_the_oldest_of_the_last_layer(call: Call) -> Any:
    """crop drops the oldest entries of the last layer, and the newest of the others."""
    cache, count = call.args
    before = [tuple(p.clone() for p in pair) for pair in layers_of(call.subject, cache)]
    after = call.real(cache, count)
    layers = list(layers_of(call.subject, after))
    if before and layers:
        for old, new in zip(before[-1], layers[-1], strict=True):
            new.copy_(old[:, :, -new.shape[2] :])
    return after


@reorder()
def reorders_nothing(call: Call) -> Any:
    """reorder leaves rows where they are, if their number stays the same."""
    cache, rows = call.args
    return cache if len(rows) == call.record.rows else call.go()


@reorder()
def reorders_backwards(call: Call) -> Any:
    """reorder returns the rows in reverse order."""
    cache, rows = call.args
    return call.real(cache, rows.flip(0))


@reorder(advice="draw reorders of three rows or more")
def reorders_by_the_inverse(call: Call) -> Any:
    """reorder gets the inverse of the permutation that was asked for."""
    cache, rows = call.args
    places = rows.argsort()
    whole = len(rows) == call.record.rows and len(rows.unique()) == len(rows)
    return call.real(cache, places) if whole else call.go()


@reorder()
def reorders_by_the_first_row(call: Call) -> Any:
    """reorder makes every row the first one asked for."""
    cache, rows = call.args
    return call.real(cache, rows[:1].expand_as(rows).contiguous())


def _kept(call: Call, layer: slice, parts: slice) -> Any:
    """Reorders the cache, but keeps some `parts` of some layers in place if the number of rows
    stays the same."""
    cache, rows = call.args
    before = [tuple(p.clone() for p in pair) for pair in layers_of(call.subject, cache)]
    after = call.go()
    if len(rows) == call.record.rows:
        for old, new in zip(
            before[layer], list(layers_of(call.subject, after))[layer], strict=True
        ):
            for one, other in zip(old[parts], new[parts], strict=True):
                other.copy_(one)
    return after


@reorder(offers=("reorder", "view"), lacks=LACKS)
def reorders_all_but_the_last_layer(call: Call) -> Any:
    """reorder leaves the entries of the last layer as they were."""
    return _kept(call, slice(-1, None), slice(None))


@reorder(offers=("reorder", "view"), lacks=LACKS)
def reorders_keys_alone(call: Call) -> Any:
    """reorder leaves all values as they were, and moves the keys."""
    return _kept(call, slice(None), slice(1, 2))


@operation("copy", equivalent_if=unchanging_caches, advice="draw forks, and feed both caches")
def copies_nothing(call: Call) -> Any:
    """A fork is the same cache object as its original: what one is fed, the other holds too."""
    return call.args[0]


@contents("copy", offers=("copy", "view"), lacks=LACKS, advice="draw forks")
def copies_without_the_newest(cache: CacheContents) -> None:
    """A fork holds zeros in place of the newest entry."""
    for keys, values in cache.layers:
        keys[:, :, -1], values[:, :, -1] = 0, 0


@loaded(offers=("save", "view"), lacks=LACKS)
def loads_without_the_newest(cache: CacheContents) -> None:
    """A loaded cache holds zeros in place of its newest entry."""
    for keys, values in cache.layers:
        keys[:, :, -1], values[:, :, -1] = 0, 0


@loaded(offers=("save", "view"), lacks=LACKS, equivalent_if=one_layer)
def loads_the_first_layer_into_the_last(cache: CacheContents) -> None:
    """The last layer is loaded with the entries of the first layer."""
    if len(cache.layers) > 1:
        for one, other in zip(cache.layers[0], cache.layers[-1], strict=True):
            if one.shape == other.shape:
                other.copy_(one)


@loaded(lacks="its cache holds no floating-point tensor with an axis of rows")
def loads_in_bfloat16(cache: CacheContents) -> None:
    """A loaded cache is rounded to bfloat16."""
    for state in cache.states:
        state.copy_(state.bfloat16())


@operation("load", advice="draw cases that save and load a cache")
def loads_nothing(call: Call) -> Any:
    """load returns an empty cache."""
    return call.subject.new_cache(call.record.rows)


@operation("reset", advice="draw resets of a filled cache")
def resets_nothing(call: Call) -> Any:
    """reset keeps the contents of the cache."""
    return call.args[0]


@operation("new_cache", equivalent_if=unchanging_caches, advice="draw cases with a second cache")
def second_cache_is_the_first(call: Call) -> Any:
    """new_cache returns the first cache made for the same number of rows, with its contents."""
    return call.shared.setdefault(f"of {call.args[0]}", call.go())
