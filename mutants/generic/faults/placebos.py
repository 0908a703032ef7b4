"""Interventions that watch over a campaign: those that change nothing, made as the others are, of
which none may be killed, and one that nothing can miss, and that must be."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from mutants.generic.attention_hooks import attention
from mutants.generic.cache_contents import CacheContents
from mutants.generic.decorators import FeedArgs, contents, feeding, operation
from mutants.generic.faults.blocks import LACKS, every
from mutants.generic.module_hooks import ModuleCall, modules
from mutants.generic.wrapper import Call


@operation("cached", placebo=True)
def passes_on(call: Call) -> Any:
    """A call is passed on as it is."""
    return call.go()


@feeding("tokens", placebo=True)
def tokens_copied(fed: FeedArgs) -> Tensor:
    """A call is fed a copy of its tokens."""
    return fed.tokens.clone()


@contents(placebo=True)
def entries_written_again(cache: CacheContents) -> None:
    """Everything that a cache holds is written over with itself."""
    for state in cache.states:
        state.copy_(state.clone())
    for pair in cache.layers:
        for part in pair:
            part.copy_(part.clone())


@modules(every, LACKS, placebo=True)
def layers_copied(call: ModuleCall) -> Tensor:
    """What each layer gives is copied."""
    return call.y.clone()


@attention(placebo=True)
def attention_taken_apart(scores: Tensor) -> Tensor:
    """Scores are copied, and a fused attention written out."""
    return scores.clone()


@operation("cached", canary=True)
def rolls_the_logits(call: Call) -> Any:
    """Each token's logit is the one of the token before it."""
    logits, cache = call.go()
    return logits.roll(1, -1), cache
