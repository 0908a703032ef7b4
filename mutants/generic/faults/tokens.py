"""Faults in the tokens that a call is fed."""

from __future__ import annotations

import functools

import torch
from torch import Tensor

from mutants.generic.decorators import FeedArgs, feeding

wrong = functools.partial(feeding, "tokens", advice="feed a filled cache: two calls or more")


@wrong(advice="draw a call of two tokens or more on a filled cache")
def backwards_in_a_later_chunk(fed: FeedArgs) -> Tensor:
    """The tokens of a later call are fed in reverse order."""
    return fed.tokens.flip(1) if fed.calls else fed.tokens


@wrong()
def last_of_the_call_before(fed: FeedArgs) -> Tensor:
    """A later call feeds the last token of the call before, not its own first token."""
    last = fed.memory.get("last")
    fed.memory["last"] = fed.tokens[:, -1:]
    if last is None or last.shape[0] != fed.tokens.shape[0]:
        return fed.tokens
    return torch.cat((last, fed.tokens[:, 1:]), 1)


@wrong(advice="draw a call of two tokens or more on a filled cache")
def last_of_a_later_chunk_alone(fed: FeedArgs) -> Tensor:
    """A later call feeds its last token in place of all its tokens."""
    return fed.tokens[:, -1:].expand_as(fed.tokens) if fed.calls else fed.tokens


@wrong(advice="draw two rows or more")
def rows_crossed(fed: FeedArgs) -> Tensor:
    """A later call feeds each row the tokens of the row before it."""
    return fed.tokens.roll(1, 0) if fed.calls else fed.tokens


@wrong(advice="draw two rows or more")
def of_the_first_row(fed: FeedArgs) -> Tensor:
    """A later call feeds the first row's tokens to every row."""
    return fed.tokens[:1].expand_as(fed.tokens) if fed.calls else fed.tokens


@wrong(advice="draw crops", offers=("crop",))
def dropped_ones_again_after_a_crop(fed: FeedArgs) -> Tensor:
    """After a crop, the next call feeds the first dropped token, not its own first token."""
    before = fed.memory.get("history", fed.tokens[:, :0])
    kept = before[:, : fed.slots]
    fed.memory["history"] = torch.cat((kept, fed.tokens), 1)
    if before.shape[1] <= fed.slots or before.shape[0] != fed.tokens.shape[0]:
        return fed.tokens
    return torch.cat((before[:, fed.slots : fed.slots + 1], fed.tokens[:, 1:]), 1)
