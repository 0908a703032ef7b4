"""Tells a drawn fault, while a model runs, how much its cache holds, and what was before.

A copy of a model gets `_when`, this module, as a global name. The benchmark says before each call
how many tokens the cache holds and how many are fed.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any

_past = 0
_fed = 0
_kept: dict[tuple[int, str], Any] = {}


def filled() -> bool:
    """Whether the cache holds tokens."""
    return _past > 0


def single() -> bool:
    """Whether the call feeds one token."""
    return _fed == 1


def beyond(position: int) -> bool:
    """Whether the cache holds tokens and the call feeds one after `position`."""
    return filled() and _past + _fed - 1 > position


def stale(owner: Any, name: str, value: Any) -> Any:
    """Returns what `value` was in the call before; itself if there was none of its shape."""
    key = id(owner), name
    before, _kept[key] = _kept.get(key), value
    if not filled() or getattr(before, "shape", None) != getattr(value, "shape", 0):
        return value
    return before


def told(method: Callable[..., Any], length: Callable[[Any], int] | None) -> Callable[..., Any]:
    """Returns a subject's `method`, which first says what it is given: `length` of its cache,
    None for the path without a cache."""

    @wraps(method)
    def told_method(tokens: Any, *rest: Any, **given: Any) -> Any:
        global _past, _fed
        _past = _fed = 0  # asking for the length may run the fault itself
        _past = 0 if length is None else int(length(rest[0] if rest else given["cache"]))
        _fed = tokens.shape[1]
        if _past == 0:
            _kept.clear()
        return method(tokens, *rest, **given)

    return told_method
