"""What a cache holds is not what was computed: any tensor in it, keys or a recurrent state."""

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
    """Everything that is kept between calls is kept in bfloat16."""
    for state in cache.states:
        state.copy_(state.bfloat16())


@wrong()
def nought(cache: CacheContents) -> None:
    """What a call leaves behind is all zeros: the next begins without a past."""
    for state in cache.states:
        state.zero_()


@wrong(advice="draw two rows or more")
def rows_crossed(cache: CacheContents) -> None:
    """Each row goes on with what the row before it left."""
    for state in cache.states:
        state.copy_(state.roll(1, 0))


@wrong(advice="draw two rows or more")
def of_the_first_row(cache: CacheContents) -> None:
    """All rows go on with what the first one left."""
    for state in cache.states:
        state.copy_(state[:1].clone().expand_as(state))


@wrong()
def doubled(cache: CacheContents) -> None:
    """What is kept of the last tensor is twice what it was."""
    for state in cache.states[-1:]:
        state.mul_(2)


@wrong()
def last_feature_lost(cache: CacheContents) -> None:
    """The last feature of everything that is kept is zero."""
    for state in cache.states:
        state[..., -1:] = 0
