"""The modules of a subject: their names, and which of them normalise."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from torch import nn


def is_norm(module: nn.Module) -> bool:
    """Whether `module` normalises, told by its kind: no modules inside and, if it has weights, such
    of one dimension alone; if it has none, a small number that keeps it from dividing by nought."""
    if next(module.children(), None) is not None:
        return False
    weights = list(module.parameters(recurse=False))
    small = any(isinstance(v, float) and 0 < v < 1e-2 for v in vars(module).values())
    return all(weight.dim() == 1 for weight in weights) if weights else small


def names_of(subject: Any, model: Any) -> dict[int, str]:
    """The names of the modules of `subject` by their ids: as in its `model`, or from its attributes
    on."""
    roots = {"": model} if isinstance(model, nn.Module) else dict(_held(subject))
    names: dict[int, str] = {}
    for root, module in roots.items():
        for name, inner in module.named_modules(prefix=root):
            names.setdefault(id(inner), name)
    return names


def _held(thing: Any, name: str = "") -> Iterator[tuple[str, nn.Module]]:
    """The modules among the attributes of `thing`, and in their lists and dicts, by their names."""
    parts: Iterable[tuple[Any, Any]] = ()
    if isinstance(thing, nn.Module):
        yield name, thing
    elif isinstance(thing, Mapping):
        parts = thing.items()
    elif isinstance(thing, list | tuple):
        parts = enumerate(thing)
    elif not name:
        parts = getattr(thing, "__dict__", {}).items()
    for key, value in parts:
        yield from _held(value, f"{name}.{key}" if name else str(key))


def unnamed(module: nn.Module) -> str:
    """A name for a module that has none: the model itself, or one made on the way."""
    return f"<{type(module).__name__}>"
