"""Wraps a subject, with a generic mutant in place of some of its methods."""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from kvfuzz.subjects.injection import FORWARD, Faulty

READING = ("view", "unused", "generate")
"""Optional methods that neither change nor return a cache: no mutant replaces them."""


@dataclass
class Record:
    """The history of one cache: its number of `rows`, the `slots` that were fed and not cropped,
    its `calls`, all slots that were ever `fed`, and the fault's own `memory`. A copy of the cache
    gets a copy of it."""

    rows: int = 0
    slots: int = 0
    calls: int = 0
    fed: int = 0
    memory: dict[str, Any] = field(default_factory=dict)

    def after(self, name: str, args: tuple[Any, ...]) -> Record:
        """Returns the record after a call of the method `name` with `args`."""
        match name:
            case "cached":
                new = args[0].shape[1]
                return replace(
                    self, slots=self.slots + new, fed=self.fed + new, calls=self.calls + 1
                )
            case "crop":
                return replace(self, slots=max(0, self.slots - args[1]))
            case "rollback":
                return replace(self, slots=max(0, self.slots - int(args[1].min())))
            case "reorder":
                return replace(self, rows=len(args[1]))
            case "reset":
                return Record(self.rows)
            case "copy" | "save" | "load":
                return copy.deepcopy(self)
        return self


@dataclass(frozen=True)
class WrappedCache:
    """A cache, or a saved one, and its record."""

    inner: Any
    record: Record


@dataclass(frozen=True)
class Call:
    """A call of the method `name` of the clean `subject`, `real`, with `args` and what was `given`
    by name. `shared` is the fault's memory beyond one cache. The fault calls `reached` where it
    acts."""

    subject: Any
    name: str
    real: Callable[..., Any]
    args: tuple[Any, ...]
    given: dict[str, Tensor]
    record: Record
    shared: dict[str, Any]
    reached: Callable[[], None]

    def go(self) -> Any:
        """Returns the result of the clean method."""
        return self.real(*self.args, **self.given)


Interceptor = Callable[[Call], Any]
"""Makes a call with a fault in it, and returns the result of the method."""


class WrappedSubject(Faulty):
    """`subject` with `intercept` around those of its methods that are in `methods`. The uncached
    path, and every method that changes no cache, are the subject's own."""

    def __init__(self, subject: Any, methods: frozenset[str], intercept: Interceptor) -> None:
        super().__init__(subject, (), lambda: ())
        self._methods, self._intercept = methods, intercept
        self._shared: dict[str, Any] = {}

    def new_cache(self, batch: int) -> Any:
        """Returns an empty cache for `batch` rows, with its own record."""
        return self._called("new_cache", self.subject.new_cache, Record(batch), (batch,), {})

    def _with_fault(self, found: Callable[..., Any], name: str) -> Any:
        if name in READING:
            return self._reading(found)

        @functools.wraps(found)
        def altered(*args: Any, **given: Tensor) -> Any:
            record, *joined = [a.record for a in args if isinstance(a, WrappedCache)]
            for other in joined:
                slots = max(record.slots, other.slots)
                record = replace(record, rows=record.rows + other.rows, slots=slots)
            inner = tuple(a.inner if isinstance(a, WrappedCache) else a for a in args)
            return self._called(name, found, record, inner, given)

        return altered

    def _called(
        self,
        name: str,
        real: Callable[..., Any],
        record: Record,
        args: tuple[Any, ...],
        given: dict[str, Tensor],
    ) -> Any:
        self.calls += name in FORWARD
        call = Call(self.subject, name, real, args, given, record, self._shared, self._reach)
        with torch.no_grad():
            result = self._intercept(call) if name in self._methods else call.go()
        after = record.after(name, args)
        if name == "cached":
            logits, cache = result
            return logits, WrappedCache(cache, after)
        return WrappedCache(result, after)

    def _reading(self, found: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(found)
        def reading(*args: Any) -> Any:
            self.calls += found.__name__ in FORWARD
            return found(*(a.inner if isinstance(a, WrappedCache) else a for a in args))

        return reading

    def _reach(self) -> None:
        self.reached += 1
