"""Faults in the mask that a call is given."""

from __future__ import annotations

import functools

import torch
from torch import Tensor

from mutants.generic.decorators import FeedArgs, feeding

wrong = functools.partial(feeding, "mask", advice="draw padded cases")


def given(fed: FeedArgs) -> Tensor:
    """Returns the right mask, bool [batch, slots + new]: true for real tokens."""
    assert fed.mask is not None
    return fed.mask


@wrong()
def forgotten(fed: FeedArgs) -> Tensor:
    """The mask is ignored in every call: padding counts as real tokens."""
    return torch.ones_like(given(fed))


@wrong(advice="draw padding in the first call and another call after it")
def forgotten_after_the_first_call(fed: FeedArgs) -> Tensor:
    """The mask of a later call says that no earlier slot is padding."""
    mask = given(fed).clone()
    mask[:, : fed.slots] = True
    return mask


@wrong()
def one_slot_late(fed: FeedArgs) -> Tensor:
    """The mask is shifted by one slot; its last column wraps around to the first slot."""
    return given(fed).roll(1, 1)


@wrong(advice="draw padded rows of several lengths")
def of_the_first_row(fed: FeedArgs) -> Tensor:
    """Every call gets the mask of its first row for all rows."""
    return given(fed)[:1].expand_as(given(fed))


@wrong(advice="draw padded rows of several lengths")
def rows_crossed(fed: FeedArgs) -> Tensor:
    """Each row uses the mask of the row before it."""
    return given(fed).roll(1, 0)


@wrong(advice="give a mask to a call on a filled cache")
def oldest_text_is_masked(fed: FeedArgs) -> Tensor:
    """A later call masks the first real token of each row."""
    mask = given(fed).clone()
    if fed.calls:
        mask.scatter_(1, mask.int().argmax(1, keepdim=True), False)
    return mask


@wrong(advice="give a mask to a call on a filled cache")
def last_of_before_is_masked(fed: FeedArgs) -> Tensor:
    """A later call masks the slot right before its own tokens."""
    mask = given(fed).clone()
    if fed.slots:
        mask[:, fed.slots - 1] = False
    return mask
