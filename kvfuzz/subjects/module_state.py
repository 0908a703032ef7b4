"""Watches the state that the user's modules keep, which one case could leave for the next."""

from __future__ import annotations

import sys
import sysconfig
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from types import FunctionType, ModuleType
from typing import Any

from torch import Tensor

MOST_ITEMS = 64
"""So many items of a container are looked at, besides their number."""
_INSTALLED = tuple(
    str(Path(sysconfig.get_paths()[key]).resolve()) for key in ("stdlib", "purelib", "platlib")
)
_FOLDERS = {"site-packages", "dist-packages"}
"""The folders of installed packages, also those of another environment that this one takes over."""
_OURS = tuple(str(Path(__file__).resolve().parents[2] / name) for name in ("kvfuzz", "mutants"))


def module_state() -> dict[str, Any]:
    """Returns a fingerprint of each global of the user's modules, and of each attribute of their
    classes, by name (`my_model.MEMO`). Installed packages are not looked at."""
    return {
        name: _fingerprint(value)
        for module in _own_modules()
        for name, value in _globals_of(module)
    }


def changes(before: Mapping[str, Any], after: Mapping[str, Any]) -> tuple[str, ...]:
    """Returns the names whose fingerprint changed, or that are new in a module known `before`."""
    modules = {name.partition(":")[0] for name in before}
    return tuple(
        name.replace(":", ".")
        for name, value in sorted(after.items())
        if name.partition(":")[0] in modules and before.get(name, "new") != value
    )


def _own_modules() -> Iterator[ModuleType]:
    for module in list(sys.modules.values()):
        file = getattr(module, "__file__", None)
        if file and _is_own(file):
            yield module


@cache
def _is_own(file: str) -> bool:
    path = Path(file).resolve()
    return _FOLDERS.isdisjoint(path.parts) and not str(path).startswith((*_INSTALLED, *_OURS))


def _globals_of(module: ModuleType) -> Iterator[tuple[str, Any]]:
    for name, value in list(vars(module).items()):
        if name.startswith("__") or isinstance(value, ModuleType):
            continue
        place = f"{module.__name__}:{name}"
        if isinstance(value, type):
            if value.__module__ == module.__name__:
                for key, each in list(vars(value).items()):
                    if not key.startswith("__"):
                        yield f"{place}.{key}", each
        else:
            yield place, value


def _fingerprint(value: Any, depth: int = 2) -> Any:
    """Returns what changes if `value` is written to, and is equal otherwise."""
    try:
        return _look_into(value, depth)
    except Exception:  # a proxy may ask for a GPU or a package when an attribute of it is read
        return id(value)


def _look_into(value: Any, depth: int) -> Any:
    if callable(size := getattr(value, "cache_info", None)):
        return "calls kept", size().currsize  # functools.cache and lru_cache
    if isinstance(value, Tensor):
        return id(value), value._version
    if isinstance(value, str | bytes | int | float | complex | bool | None):
        return value
    if depth and isinstance(value, dict):
        items = list(value.items())
        inside = [
            (repr(key)[:80], _fingerprint(item, depth - 1)) for key, item in items[:MOST_ITEMS]
        ]
        return len(items), tuple(inside)
    if depth and isinstance(value, list | set | tuple):
        inside = [_fingerprint(item, depth - 1) for item in list(value)[:MOST_ITEMS]]
        return len(value), tuple(inside)
    if depth and isinstance(value, FunctionType):
        cells = [cell.cell_contents for cell in value.__closure__ or () if _is_set(cell)]
        return tuple(
            _fingerprint(each, depth - 1) for each in (*(value.__defaults__ or ()), *cells)
        )
    if depth and hasattr(value, "__dict__") and not isinstance(value, type):
        named = list(vars(value).items())[:MOST_ITEMS]
        inside = [(repr(name)[:80], _fingerprint(each, depth - 1)) for name, each in named]
        return id(value), tuple(inside)
    return id(value)


def _is_set(cell: Any) -> bool:
    try:
        cell.cell_contents  # noqa: B018
    except ValueError:
        return False
    return True
