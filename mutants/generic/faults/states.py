"""Faults in any tensor that a cache holds: keys, values or a recurrent state."""

from __future__ import annotations

import functools

from mutants.generic.cache_contents import CacheContents
from mutants.generic.decorators import contents
from mutants.generic.equivalence_checks import in_bfloat16

wrong = functools.partial(
    contents,
    lacks="its cache holds no floating-point tensor with an axis of rows",
    advice="feed a filled cache: two calls or more",
)


@wrong(equivalent_if=in_bfloat16)
def rounded_to_bfloat16(cache: CacheContents) -> None:
    """Each call rounds everything in the cache to bfloat16."""
    for state in cache.states:
        state.copy_(state.bfloat16())


@wrong()
def nought(cache: CacheContents) -> None:
    """Each call leaves only zeros in the cache: the next one starts without a past."""
    for state in cache.states:
        state.zero_()


@wrong(advice="draw two rows or more")
def rows_crossed(cache: CacheContents) -> None:
    """Each row continues with the state of the row before it."""
    for state in cache.states:
        state.copy_(state.roll(1, 0))


@wrong(advice="draw two rows or more")
def of_the_first_row(cache: CacheContents) -> None:
    """All rows continue with the state of the first row."""
    for state in cache.states:
        state.copy_(state[:1].clone().expand_as(state))


@wrong()
def doubled(cache: CacheContents) -> None:
    """Each call doubles the last tensor in the cache."""
    for state in cache.states[-1:]:
        state.mul_(2)


@wrong()
def last_feature_lost(cache: CacheContents) -> None:
    """Each call sets the last feature of every tensor in the cache to zero."""
    for state in cache.states:
        state[..., -1:] = 0
