"""Controls of a campaign with generic mutants: placebos, which change nothing and must survive, and
a canary, which must be killed."""

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
    """Every call is passed on unchanged."""
    return call.go()


@feeding("tokens", placebo=True)
def tokens_copied(fed: FeedArgs) -> Tensor:
    """Each call is fed a copy of its tokens."""
    return fed.tokens.clone()


@contents(placebo=True)
def entries_written_again(cache: CacheContents) -> None:
    """Each call overwrites the contents of its cache with copies of themselves."""
    for state in cache.states:
        state.copy_(state.clone())
    for pair in cache.layers:
        for part in pair:
            part.copy_(part.clone())


@modules(every, LACKS, placebo=True)
def layers_copied(call: ModuleCall) -> Tensor:
    """The output of each layer is copied."""
    return call.y.clone()


@attention(placebo=True)
def attention_taken_apart(scores: Tensor) -> Tensor:
    """Attention scores are copied, and fused attention is computed step by step."""
    return scores.clone()


@operation("cached", canary=True)
def rolls_the_logits(call: Call) -> Any:
    """The logits of every call are rolled by one along the vocabulary."""
    logits, cache = call.go()
    return logits.roll(1, -1), cache
