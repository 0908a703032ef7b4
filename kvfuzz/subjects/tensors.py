"""Finds the tensors and modules inside an object of any type, and frees the memory of large
ones."""

from __future__ import annotations

import ctypes
import functools
import gc
import sys
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import BuiltinFunctionType, FunctionType, MethodType, ModuleType
from typing import Any

import torch
from torch import Tensor, nn

MOST_OBJECTS = 10_000
LARGE = 100_000_000
"""The bytes of tensors from which it pays to free their memory at once."""
_CLOSED = (str, bytes, int, float, complex, torch.dtype, torch.device, torch.Generator)
_PLAIN = (dict, OrderedDict, list, tuple, set)
_CODE = (type, ModuleType, FunctionType, MethodType, BuiltinFunctionType)


def walk(root: Any, modules: bool) -> Iterator[Any]:
    """Yields `root` and every object that is reached from it through containers and attributes,
    each once and at most MOST_OBJECTS; no empty containers. Looks into torch modules only if
    `modules` is true."""
    seen: set[int] = set()
    waiting = [root]
    while waiting and len(seen) < MOST_OBJECTS:
        thing = waiting.pop()
        kind = _kind_of(type(thing))  # type: ignore[arg-type]  # a type can be hashed
        if kind.closed or id(thing) in seen or (kind.plain and not thing):
            continue
        seen.add(id(thing))
        yield thing
        if not kind.tensor and (modules or not isinstance(thing, nn.Module)):
            waiting += _parts(thing, kind)


def floating_tensors(root: Any, modules: bool) -> list[Tensor]:
    """Returns the floating-point tensors that `walk` reaches. Without `modules` there are no
    parameters among them, by whatever way they are reached: a cache may know its model."""
    return [
        thing
        for thing in walk(root, modules)
        if isinstance(thing, Tensor)
        and thing.is_floating_point()
        and (modules or not isinstance(thing, nn.Parameter))
    ]


def free_memory(bytes_dropped: int) -> None:
    """Gives the memory of tensors back to the system, now that nothing needs them any more; does
    nothing if they were not large."""
    if bytes_dropped < LARGE:
        return
    gc.collect()  # a subject that is part of a circle of references keeps its tensors until then
    if sys.platform == "linux":
        # glibc keeps what is freed between memory in use, also what would make the next twin.
        trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
        if trim is not None:
            trim(0)


def free_bytes() -> int | None:
    """Returns the bytes of memory that programs can still have; None if the system does not say."""
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
    except OSError:
        return None
    found = [line.split()[1] for line in lines if line.startswith("MemAvailable:")]
    return 1024 * int(found[0]) if found else None


@dataclass(frozen=True, slots=True)
class _Kind:
    """How to walk the objects of one type. `closed` ones are skipped; `plain` containers hold
    nothing but their entries; `tensor`, `mapping` and `several` (a list, tuple or set) say what
    they are; `slots` names their slots."""

    closed: bool
    plain: bool
    tensor: bool
    mapping: bool
    several: bool
    slots: tuple[str, ...]


@functools.lru_cache(maxsize=4096)
def _kind_of(one: type) -> _Kind:
    slots = [vars(owner).get("__slots__", ()) for owner in one.__mro__]
    return _Kind(
        issubclass(one, _CLOSED + _CODE),
        one in _PLAIN,
        issubclass(one, Tensor),
        issubclass(one, Mapping),
        issubclass(one, list | tuple | set | frozenset),
        tuple(name for own in slots for name in ((own,) if isinstance(own, str) else own)),
    )


def _parts(thing: Any, kind: _Kind) -> Iterable[Any]:
    parts: list[Any] = []
    if kind.mapping:
        parts += thing.values()
    elif kind.several:
        parts += thing
    parts += getattr(thing, "__dict__", {}).values()
    parts += (getattr(thing, name) for name in kind.slots if hasattr(thing, name))
    return parts
