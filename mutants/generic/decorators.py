"""The kinds of interventions: what their functions are given, and what is done with the answer."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from kvfuzz.subjects.protocol import OFFERED
from mutants.generic.cache_contents import CacheContents, write
from mutants.generic.mutant import GenericMutant, made
from mutants.generic.wrapper import Call


@dataclass(frozen=True)
class FeedArgs:
    """What a call feeds: `tokens` [batch, new], the `mask` [batch, slots + new] and `positions`
    [batch, new] where they are given. `slots` were fed before and not cropped, `fed` were fed at
    all, in so many `calls`; `memory` lives as long as the cache."""

    tokens: Tensor
    mask: Tensor | None
    positions: Tensor | None
    slots: int
    fed: int
    calls: int
    memory: dict[str, Any]


def feeding(word: str, **told: Any) -> Callable[[Callable[[FeedArgs], Tensor]], GenericMutant]:
    """The decorated function takes a FeedArgs, and gives what is fed in place of its `word`:
    `tokens`, `mask` or `positions`. It is called where that is given."""

    def decorated(fault: Callable[[FeedArgs], Tensor]) -> GenericMutant:
        def intercept(call: Call) -> Any:
            tokens, cache = call.args
            given = {"tokens": tokens, **call.given}
            if word not in given:
                return call.go()
            record = call.record
            fed = FeedArgs(
                tokens, given.get("mask"), given.get("positions"),
                record.slots, record.fed, record.calls, record.memory,
            )  # fmt: skip
            changed = fault(fed)
            if told.get("placebo") or not torch.equal(changed, given[word]):
                call.reached()
            given[word] = changed
            return call.real(given.pop("tokens"), cache, **given)

        offers = () if word == "tokens" else (word,)
        return made(fault, ("cached",), intercept, **{"offers": offers, **told})

    return decorated


def contents(
    after: str = "cached", **told: Any
) -> Callable[[Callable[[CacheContents], None]], GenericMutant]:
    """The decorated function writes into what a cache holds once the method `after` has run: each
    call, or another that gives a cache."""

    def decorated(fault: Callable[[CacheContents], None]) -> GenericMutant:
        def intercept(call: Call) -> Any:
            result = call.go()
            cache = result[1] if call.name == "cached" else result
            new = call.args[0].shape[1] if call.name == "cached" else 0
            rows = call.record.after(call.name, call.args).rows
            if write(call.subject, cache, rows, new, fault) or told.get("placebo"):
                call.reached()
            return result

        return made(fault, (after,), intercept, **{"offers": needed(after), **told})

    return decorated


def operation(name: str, **told: Any) -> Callable[[Callable[[Call], Any]], GenericMutant]:
    """The decorated function takes a Call of the method `name`, and gives what that would."""

    def decorated(fault: Callable[[Call], Any]) -> GenericMutant:
        @functools.wraps(fault)
        def intercept(call: Call) -> Any:
            call.reached()
            return fault(call)

        return made(fault, (name,), intercept, **{"offers": needed(name), **told})

    return decorated


def needed(name: str) -> tuple[str, ...]:
    """The offer that a method `name` is."""
    word = "save" if name == "load" else name
    return (word,) if word in OFFERED else ()
