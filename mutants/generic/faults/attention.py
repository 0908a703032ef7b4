"""Attention, wherever a softmax over cached entries is taken with torch, that goes wrong there."""

from __future__ import annotations

import torch
from torch import Tensor

from mutants.generic.attention_hooks import attention, seen
from mutants.generic.equivalence_checks import in_bfloat16

LOW = -1e4
"""What a fault masks a key by: low enough in every dtype, and finite."""


@attention()
def scale_a_tenth_too_large(scores: Tensor) -> Tensor:
    """Scores are a tenth too large: they are scaled by another width of a head."""
    return torch.where(seen(scores), scores * 1.1, scores)


@attention()
def scale_forgotten(scores: Tensor) -> Tensor:
    """Scores are twice as large as they should be."""
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
    """Attention has a window of four keys, whatever the model has."""
    there = seen(scores)
    old = there & (there.cumsum(-1) <= there.sum(-1, keepdim=True) - 4)
    return torch.where(old, scores + LOW, scores)


@attention()
def all_keys_count_alike(scores: Tensor) -> Tensor:
    """Every key that a query sees has the same score."""
    return torch.where(seen(scores), torch.zeros_like(scores), scores)


@attention(equivalent_if=in_bfloat16)
def scores_rounded_to_bfloat16(scores: Tensor) -> Tensor:
    """Scores are rounded to bfloat16 before the softmax."""
    return torch.where(seen(scores), scores.bfloat16().to(scores.dtype), scores)


@attention(after=True)
def largest_share_lost(shares: Tensor) -> Tensor:
    """The share of the key with the largest one is lost, and the others stay as they are."""
    return torch.where(shares == shares.amax(-1, keepdim=True), torch.zeros_like(shares), shares)


@attention(after=True, equivalent_if=in_bfloat16)
def shares_rounded_to_bfloat16(shares: Tensor) -> Tensor:
    """The shares that the softmax gives are rounded to bfloat16."""
    return shares.bfloat16().to(shares.dtype)


@attention(after=True, advice="draw two rows or more")
def shares_of_the_first_row(shares: Tensor) -> Tensor:
    """All rows have the shares of the first."""
    return shares[:1].expand_as(shares)
