"""Faults in attention, wherever a torch model takes a softmax over cached entries."""

from __future__ import annotations

import torch
from torch import Tensor

from mutants.generic.attention_hooks import attention, seen
from mutants.generic.equivalence_checks import in_bfloat16

LOW = -1e4
"""Added to a score to mask its key: low enough in every dtype, and finite."""


@attention()
def scale_a_tenth_too_large(scores: Tensor) -> Tensor:
    """Attention scores are a tenth too large, as if scaled for another head width."""
    return torch.where(seen(scores), scores * 1.1, scores)


@attention()
def scale_forgotten(scores: Tensor) -> Tensor:
    """Attention scores are doubled."""
    return torch.where(seen(scores), scores * 2, scores)


@attention()
def oldest_is_not_seen(scores: Tensor) -> Tensor:
    """The oldest key that a query sees is masked, unless it is the only one."""
    there = seen(scores)
    oldest = there & (there.cumsum(-1) == 1) & (there.sum(-1, keepdim=True) > 1)
    return torch.where(oldest, scores + LOW, scores)


@attention()
def newest_is_not_seen(scores: Tensor) -> Tensor:
    """The newest key that a query sees is masked, unless it is the only one."""
    there = seen(scores)
    count = there.sum(-1, keepdim=True)
    newest = there & (there.cumsum(-1) == count) & (count > 1)
    return torch.where(newest, scores + LOW, scores)


@attention(advice="draw sequences of five tokens or more")
def only_the_last_four_are_seen(scores: Tensor) -> Tensor:
    """A query sees only its last four keys, whatever the window of the model."""
    there = seen(scores)
    old = there & (there.cumsum(-1) <= there.sum(-1, keepdim=True) - 4)
    return torch.where(old, scores + LOW, scores)


@attention()
def all_keys_count_alike(scores: Tensor) -> Tensor:
    """All keys that a query sees get the same score."""
    return torch.where(seen(scores), torch.zeros_like(scores), scores)


@attention(equivalent_if=in_bfloat16)
def scores_rounded_to_bfloat16(scores: Tensor) -> Tensor:
    """Attention scores are rounded to bfloat16 before the softmax."""
    return torch.where(seen(scores), scores.bfloat16().to(scores.dtype), scores)


@attention(after=True)
def largest_share_lost(shares: Tensor) -> Tensor:
    """The largest attention weight of each query is set to zero, and the others stay as they
    are."""
    return torch.where(shares == shares.amax(-1, keepdim=True), torch.zeros_like(shares), shares)


@attention(after=True, equivalent_if=in_bfloat16)
def shares_rounded_to_bfloat16(shares: Tensor) -> Tensor:
    """Attention weights are rounded to bfloat16 after the softmax."""
    return shares.bfloat16().to(shares.dtype)


@attention(after=True, advice="draw two rows or more")
def shares_of_the_first_row(shares: Tensor) -> Tensor:
    """All rows use the attention weights of the first row."""
    return shares[:1].expand_as(shares)
