"""Decorators that make generic mutants: of what a call is fed, of a cache's contents, of a
method."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from kvfuzz.subjects.protocol import OFFERED
from mutants.generic.cache_contents import CacheContents, write
from mutants.generic.mutant import GenericMutant, generic_mutant
from mutants.generic.wrapper import Call


@dataclass(frozen=True)
class FeedArgs:
    """The arguments of a call: `tokens` [batch, new], and `mask` [batch, slots + new] and
    `positions` [batch, new] where they are given. Before it, `fed` slots were fed in `calls` calls,
    of which `slots` were not cropped. `memory` lives as long as the cache."""

    tokens: Tensor
    mask: Tensor | None
    positions: Tensor | None
    slots: int
    fed: int
    calls: int
    memory: dict[str, Any]


def feeding(word: str, **declared: Any) -> Callable[[Callable[[FeedArgs], Tensor]], GenericMutant]:
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
            if declared.get("placebo") or not torch.equal(changed, given[word]):
                call.reached()
            given[word] = changed
            return call.real(given.pop("tokens"), cache, **given)

        offers = () if word == "tokens" else (word,)
        return generic_mutant(fault, ("cached",), intercept, **{"offers": offers, **declared})

    return decorated


def contents(
    after: str = "cached", **declared: Any
) -> Callable[[Callable[[CacheContents], None]], GenericMutant]:
    """Makes a mutant of a function that writes into the contents of a cache after the method
    `after`: `cached`, or another that returns a cache."""

    def decorated(fault: Callable[[CacheContents], None]) -> GenericMutant:
        def intercept(call: Call) -> Any:
            result = call.go()
            cache = result[1] if call.name == "cached" else result
            new = call.args[0].shape[1] if call.name == "cached" else 0
            rows = call.record.after(call.name, call.args).rows
            if write(call.subject, cache, rows, new, fault) or declared.get("placebo"):
                call.reached()
            return result

        return generic_mutant(fault, (after,), intercept, **{"offers": needed(after), **declared})

    return decorated


def operation(name: str, **declared: Any) -> Callable[[Callable[[Call], Any]], GenericMutant]:
    """Makes a mutant of a function that takes a Call of the method `name` and returns its
    result."""

    def decorated(fault: Callable[[Call], Any]) -> GenericMutant:
        @functools.wraps(fault)
        def intercept(call: Call) -> Any:
            call.reached()
            return fault(call)

        return generic_mutant(fault, (name,), intercept, **{"offers": needed(name), **declared})

    return decorated


def needed(name: str) -> tuple[str, ...]:
    """Returns the offers that a fault of the method `name` needs."""
    word = "save" if name == "load" else name
    return (word,) if word in OFFERED else ()
