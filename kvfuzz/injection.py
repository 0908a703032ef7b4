"""Put a fault into the cached path of a subject, and into that path alone.

A *target* is a function named `module:attribute`, which the cached path calls through its module.
While a step runs, the target is replaced; before and after it is the real one, so the uncached
path never meets the fault.
"""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from kvfuzz.errors import InvalidSubject

Fault = Callable[..., Any]
"""Takes the real functions of its targets; returns the replacement, or a tuple of them."""


@dataclass(frozen=True)
class FaultyCache:
    """A cache, and the replacements that act on it: a fault's own state lives as long."""

    inner: Any
    replacements: tuple[Callable[..., Any], ...]


class Faulty:
    """`subject` with `fault` in its cached path; everything else is the subject's own.

    `reached` counts the calls of a replaced target. Raises InvalidSubject if a target does not
    exist or the fault does not return one replacement for each.
    """

    def __init__(self, subject: Any, targets: Sequence[str], fault: Fault) -> None:
        self.subject = subject
        self.fault = fault
        self.places = [_place(target) for target in targets]
        self.reached = 0
        self._replacements()

    def __getattr__(self, name: str) -> Any:
        return getattr(self.subject, name)

    def new_cache(self, batch: int) -> FaultyCache:
        """An empty cache for `batch` rows, with a fresh fault of its own."""
        return FaultyCache(self.subject.new_cache(batch), self._replacements())

    def cached(self, tokens: Tensor, cache: FaultyCache) -> tuple[Tensor, FaultyCache]:
        """As the subject's, while the fault is in place."""
        with replaced(self.places, cache.replacements):
            logits, inner = self.subject.cached(tokens, cache.inner)
        return logits, FaultyCache(inner, cache.replacements)

    def _replacements(self) -> tuple[Callable[..., Any], ...]:
        made = self.fault(*(getattr(module, name) for module, name in self.places))
        functions = made if isinstance(made, tuple) else (made,)
        if len(functions) != len(self.places) or not all(map(callable, functions)):
            name = getattr(self.fault, "__name__", self.fault)
            raise InvalidSubject(
                f"the fault {name} should return {len(self.places)} functions, "
                f"one for each target, got {made!r}"
            )
        return tuple(map(self._counted, functions))

    def _counted(self, function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function)
        def counted(*args: Any, **kwargs: Any) -> Any:
            self.reached += 1
            return function(*args, **kwargs)

        return counted


@contextmanager
def replaced(
    places: Sequence[tuple[Any, str]], functions: Sequence[Callable[..., Any]]
) -> Iterator[None]:
    """Inside this context each place (owner, name) holds the function given for it."""
    real = [getattr(owner, name) for owner, name in places]
    try:
        for (owner, name), function in zip(places, functions, strict=True):
            setattr(owner, name, function)
        yield
    finally:
        for (owner, name), function in zip(places, real, strict=True):
            setattr(owner, name, function)


def _place(target: str) -> tuple[Any, str]:
    """The owner and the name that `module:attribute` stands for."""
    module_name, _, path = target.partition(":")
    *owners, name = path.split(".")
    try:
        owner: Any = importlib.import_module(module_name)
        for word in owners:
            owner = getattr(owner, word)
        getattr(owner, name)
    except (ImportError, AttributeError, ValueError):
        raise InvalidSubject(f"there is no target {target!r} to put a fault into") from None
    return owner, name
