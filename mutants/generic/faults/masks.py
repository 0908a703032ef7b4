"""Calls are given a mask, and not the right one."""

from __future__ import annotations

import functools

import torch
from torch import Tensor

from mutants.generic.decorators import FeedArgs, feeding

wrong = functools.partial(feeding, "mask", advice="draw padded cases")


def given(fed: FeedArgs) -> Tensor:
    """The right mask, bool [batch, slots + new]: true for text."""
    assert fed.mask is not None
    return fed.mask


@wrong()
def forgotten(fed: FeedArgs) -> Tensor:
    """Padding counts as text, from the first call on."""
    return torch.ones_like(given(fed))


@wrong(advice="draw padding in the first call and another call after it")
def forgotten_after_the_first_call(fed: FeedArgs) -> Tensor:
    """A later call takes the slots that are there for text, padding too."""
    mask = given(fed).clone()
    mask[:, : fed.slots] = True
    return mask


@wrong()
def one_slot_late(fed: FeedArgs) -> Tensor:
    """The mask is moved by one slot: the first is masked as the last should be."""
    return given(fed).roll(1, 1)


@wrong(advice="draw padded rows of several lengths")
def of_the_first_row(fed: FeedArgs) -> Tensor:
    """All rows have the mask of the first."""
    return given(fed)[:1].expand_as(given(fed))


@wrong(advice="draw padded rows of several lengths")
def rows_crossed(fed: FeedArgs) -> Tensor:
    """Each row has the mask of the row before it."""
    return given(fed).roll(1, 0)


@wrong(advice="give a mask to a call on a filled cache")
def oldest_text_is_masked(fed: FeedArgs) -> Tensor:
    """In a later call the first token of text is taken for padding."""
    mask = given(fed).clone()
    if fed.calls:
        mask.scatter_(1, mask.int().argmax(1, keepdim=True), False)
    return mask


@wrong(advice="give a mask to a call on a filled cache")
def last_of_before_is_masked(fed: FeedArgs) -> Tensor:
    """In a later call the slot before its own tokens is taken for padding."""
    mask = given(fed).clone()
    if fed.slots:
        mask[:, fed.slots - 1] = False
    return mask
