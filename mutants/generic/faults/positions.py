"""Faults in the positions that a call is given."""

from __future__ import annotations

import functools

import torch
from torch import Tensor

from mutants.generic.decorators import FeedArgs, feeding
from mutants.generic.equivalence_checks import no_positions, relative_positions

wrong = functools.partial(
    feeding, "positions", advice="draw cases that give positions", equivalent_if=no_positions
)


def given(fed: FeedArgs) -> Tensor:
    """The right positions [batch, new]."""
    assert fed.positions is not None
    return fed.positions


@wrong(advice="feed a filled cache with positions given")
def restart_at_each_chunk(fed: FeedArgs) -> Tensor:
    """Positions restart at 0 in every call."""
    right = given(fed)
    return right - right[:, :1]


@wrong(advice="feed a filled cache with positions given")
def one_too_far_after_the_first_call(fed: FeedArgs) -> Tensor:
    """Every call but the first gets positions that are one too high."""
    return given(fed) + int(fed.calls > 0)


@wrong(advice="feed a filled cache with positions given")
def one_short_after_the_first_call(fed: FeedArgs) -> Tensor:
    """Every call but the first gets positions that are one too low."""
    return (given(fed) - int(fed.calls > 0)).clamp_min(0)


@wrong(equivalent_if=relative_positions)
def all_one_too_far(fed: FeedArgs) -> Tensor:
    """Positions start at 1."""
    return given(fed) + 1


@wrong(advice="draw calls of two tokens or more with positions given")
def one_for_the_whole_chunk(fed: FeedArgs) -> Tensor:
    """All tokens of a call get the position of the first one."""
    return given(fed)[:, :1].expand_as(given(fed))


@wrong(advice="draw calls of two tokens or more with positions given")
def backwards_in_the_chunk(fed: FeedArgs) -> Tensor:
    """The positions of a call are in reverse order."""
    return given(fed).flip(1)


@wrong(offers=("positions", "mask"), advice="draw padded cases with positions given")
def count_padding(fed: FeedArgs) -> Tensor:
    """Positions are slot numbers: padding counts."""
    new = fed.tokens.shape[1]
    slots = torch.arange(fed.slots, fed.slots + new, device=fed.tokens.device)
    return slots.expand_as(given(fed))


@wrong(offers=("positions", "crop"), advice="draw crops with positions given")
def go_on_from_before_a_crop(fed: FeedArgs) -> Tensor:
    """A call after a crop is given positions that continue from the length before it."""
    return given(fed) + (fed.fed - fed.slots)


@wrong(offers=("positions", "mask"), advice="draw padded rows of several lengths with positions")
def of_the_first_row(fed: FeedArgs) -> Tensor:
    """All rows get the positions of the first row."""
    return given(fed)[:1].expand_as(given(fed))
