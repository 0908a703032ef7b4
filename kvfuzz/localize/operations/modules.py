"""Finds the modules of a subject: their names, which of them normalise, and which are layers."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from torch import nn

from kvfuzz.subjects.float64 import unwrapped


def is_norm(module: nn.Module) -> bool:
    """Whether `module` normalises.

    It has no children, and either weights of one dimension only, or no weights and a small float
    attribute: the epsilon that keeps it from dividing by zero.
    """
    if next(module.children(), None) is not None:
        return False
    weights = list(module.parameters(recurse=False))
    small = any(isinstance(v, float) and 0 < v < 1e-2 for v in vars(module).values())
    return all(weight.dim() == 1 for weight in weights) if weights else small


def modules_of(subject: Any, model: Any) -> dict[str, nn.Module]:
    """Returns the modules of `subject` by name, each once: named as in its `model`, or, where that
    is not a module, by the attributes that lead to them."""
    inner = unwrapped(subject)
    roots = {"": model} if isinstance(model, nn.Module) else dict(_in_attributes(inner))
    names: dict[nn.Module, str] = {}
    for root, module in roots.items():
        for name, part in module.named_modules(prefix=root):
            names.setdefault(part, name)
    return {name: module for module, name in names.items()}


def blocks_of(modules: Mapping[str, nn.Module]) -> dict[str, int]:
    """Returns the layers of a model that does not number them: their names, each with its number.

    These are two or more sibling modules of one class that have children, in the order of their
    definition. Empty where the model has a numbered list of such modules: those are its layers.
    """
    families: dict[tuple[str, type], list[str]] = {}
    for name, module in modules.items():
        if name and next(module.children(), None) is not None:
            families.setdefault((name.rpartition(".")[0], type(module)), []).append(name)
    several = [names for names in families.values() if len(names) > 1]
    if any(name.rpartition(".")[2].isdigit() for names in several for name in names):
        return {}
    outside = [names for names in several if not any(map(str.isdigit, names[0].split(".")))]
    chosen = min(outside, key=lambda names: (names[0].count("."), -len(names)), default=[])
    return {name: number for number, name in enumerate(chosen)}


def block_of(module: str, blocks: Mapping[str, int]) -> str | None:
    """Returns the one of `blocks` that the module of that name is, or is inside."""
    while blocks and module and module not in blocks:
        module = module.rpartition(".")[0]
    return (module or None) if blocks else None


def _in_attributes(thing: Any, name: str = "") -> Iterator[tuple[str, nn.Module]]:
    """Yields the modules among the attributes of `thing`, and in their lists and dicts, by name."""
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
        yield from _in_attributes(value, f"{name}.{key}" if name else str(key))


def placeholder_name(module: nn.Module) -> str:
    """Returns a name for a module that has none: the model itself, or one made during the call."""
    return f"<{type(module).__name__}>"
