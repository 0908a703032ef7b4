"""Puts a fault into the cached path of a subject, and into no other.

A *target* is a function, named `module:attribute`, that the cached path calls through its module.
It is replaced while a step of the cached path runs, and real at all other times, so the uncached
path never runs the fault.
"""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from kvfuzz.errors import InvalidSubject
from kvfuzz.subjects.protocol import OFFERED

UNCACHED = ("uncached", "perturbed")
FORWARD = ("cached", "generate", *UNCACHED)
Fault = Callable[..., Any]
"""Takes the real functions of its targets; returns the replacement, or a tuple with one for
each."""


@dataclass(frozen=True)
class FaultyCache:
    """A cache and the replacements that act on it, with the fault's state: that lives as long."""

    inner: Any
    replacements: tuple[Callable[..., Any], ...]


class Faulty:
    """`subject` with `fault` in its cached path; everything else is the subject's own. With `both`
    the fault is in the uncached path too, and its state lives as long as the subject.

    `reached` counts the calls of a replaced target, `calls` the forward calls of a faulty path.
    Raises InvalidSubject if a target does not exist or the fault does not return one replacement
    for each.
    """

    def __init__(
        self, subject: Any, targets: Sequence[str], fault: Fault, both: bool = False
    ) -> None:
        self.subject = subject
        self.fault = fault
        self.both = both
        self.places = [find_target(target) for target in targets]
        self.reached = 0
        self.calls = 0
        self._first = self._made()

    def __getattr__(self, name: str) -> Any:
        found = getattr(self.subject, name)
        faulty = UNCACHED if self.both else ()
        acts = callable(found) and (name == "cached" or name in OFFERED or name in faulty)
        if not acts:
            return found
        # Kept on the instance, so that the next call finds it without coming here.
        method = self.__dict__[name] = self._with_fault(found, name)
        return method

    def new_cache(self, batch: int) -> FaultyCache:
        """Returns an empty cache for `batch` rows, with a fresh fault."""
        replacements = self._replacements()
        with replaced(self.places, replacements):
            return FaultyCache(self.subject.new_cache(batch), replacements)

    def _with_fault(self, found: Callable[..., Any], name: str) -> Any:
        """Returns the subject's method `found`, called `name`, so that it runs with the fault."""

        @functools.wraps(found)
        def faulty(*args: Any, **kwargs: Any) -> Any:
            # A method without a cache (load) gets a fresh fault, as a new cache does.
            cache = next((a for a in args if isinstance(a, FaultyCache)), None)
            replacements = cache.replacements if cache else self._replacements()
            self.calls += name in FORWARD
            inner = [a.inner if isinstance(a, FaultyCache) else a for a in args]
            with replaced(self.places, replacements):
                result = found(*inner, **kwargs)
            if name in UNCACHED:
                return result
            if name == "cached":
                logits, changed = result
                return logits, FaultyCache(changed, replacements)
            if name in ("save", "view", "unused", "generate", "release"):  # these return no cache
                return result
            return FaultyCache(result, replacements)

        return faulty

    def _replacements(self) -> tuple[Callable[..., Any], ...]:
        return self._first if self.both else self._made()

    def _made(self) -> tuple[Callable[..., Any], ...]:
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
    """Replaces the attribute of each place (owner, name) by its function, inside the context."""
    real = [getattr(owner, name) for owner, name in places]
    try:
        for (owner, name), function in zip(places, functions, strict=True):
            setattr(owner, name, function)
        yield
    finally:
        for (owner, name), function in zip(places, real, strict=True):
            setattr(owner, name, function)


def find_target(target: str) -> tuple[Any, str]:
    """Finds the owner and the name of `module:attribute`."""
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
