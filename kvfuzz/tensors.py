"""Find what is inside an object that kvfuzz knows nothing about: its tensors and its modules."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from types import BuiltinFunctionType, FunctionType, MethodType, ModuleType
from typing import Any

import torch
from torch import Tensor, nn

MOST_OBJECTS = 10_000
_CLOSED = (str, bytes, int, float, complex, torch.dtype, torch.device, torch.Generator)
_CODE = (type, ModuleType, FunctionType, MethodType, BuiltinFunctionType)


def walk(root: Any, modules: bool) -> Iterator[Any]:
    """What is reached from `root` through containers and attributes, each object once, `root`
    among it. What torch modules hold is left out unless `modules` is true."""
    seen: set[int] = set()
    waiting = [root]
    while waiting and len(seen) < MOST_OBJECTS:
        thing = waiting.pop()
        if id(thing) in seen or isinstance(thing, _CLOSED + _CODE):
            continue
        seen.add(id(thing))
        yield thing
        if isinstance(thing, nn.Module) and not modules:
            continue
        if not isinstance(thing, Tensor):
            waiting += _parts(thing)


def floating_tensors(root: Any, modules: bool) -> list[Tensor]:
    """The floating-point tensors that `walk` reaches. Without `modules` no parameter is among them,
    also where one is reached on another way: a cache may know its model."""
    return [
        thing
        for thing in walk(root, modules)
        if isinstance(thing, Tensor)
        and thing.is_floating_point()
        and (modules or not isinstance(thing, nn.Parameter))
    ]


def _parts(thing: Any) -> Iterator[Any]:
    if isinstance(thing, Mapping):
        yield from thing.values()
    elif isinstance(thing, list | tuple | set | frozenset):
        yield from thing
    yield from getattr(thing, "__dict__", {}).values()
    for owner in type(thing).__mro__:
        slots = vars(owner).get("__slots__", ())
        for name in (slots,) if isinstance(slots, str) else slots:
            if hasattr(thing, name):
                yield getattr(thing, name)
