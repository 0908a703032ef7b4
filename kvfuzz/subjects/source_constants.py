"""Reads the integer constants in the source of a subject's own modules."""

from __future__ import annotations

import ast
import operator
import sys
import sysconfig
from collections.abc import Callable, Iterable, Iterator
from functools import lru_cache
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

MOST_MODULES = 40
LARGEST_POWER = 64
_FOREIGN = frozenset(sys.stdlib_module_names) - {"__main__"} | {"torch", "numpy", "kvfuzz"}
_BUILT_IN = "kvfuzz.subjects.zoo"
_INSTALLED = tuple(
    str(Path(sysconfig.get_path(name)).resolve()) for name in ("stdlib", "purelib", "platlib")
)
_OPERATORS: dict[type[ast.operator], Callable[[int, int], int]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.FloorDiv: operator.floordiv,
}


class Constant(NamedTuple):
    """An integer in a source file: the `name` that it is given there, or none, its `value`, and its
    `place` as `file.py:12`."""

    name: str
    value: int
    place: str


def is_own(module: str) -> bool:
    """Whether `module` is neither Python's, torch's nor kvfuzz's: the built-in decoder is a subject
    like any other."""
    return module.partition(".")[0] not in _FOREIGN or module.startswith(_BUILT_IN)


def own_sources(things: Iterable[Any], roots: Iterable[Any]) -> list[Path]:
    """Returns the source files of the classes and functions in `things`, and of the modules that
    these use, as far as they are not installed packages; of `roots`, those of packages too."""
    waiting = [_module_of(thing) for thing in things]
    named = [_module_of(root) for root in roots if root is not None]
    found: dict[str, Path] = {}
    for name in named:
        path = _source(name)
        if path is not None:
            found[name] = path
    seen: set[str] = set()
    while waiting and len(found) < MOST_MODULES:
        name = waiting.pop(0)
        if name in seen:
            continue
        seen.add(name)
        path = _source(name)
        if path is None or _is_installed(name, path):
            continue
        found[name] = path
        waiting += _used_by(sys.modules[name])
    return list(dict.fromkeys(found.values()))


def _module_of(thing: Any) -> str:
    named = thing if hasattr(thing, "__qualname__") else type(thing)
    return str(getattr(named, "__module__", ""))


def _source(name: str) -> Path | None:
    """Returns the source file of a module of the subject's own, if it has one."""
    path = getattr(sys.modules.get(name), "__file__", None)
    if not is_own(name) or not path or not str(path).endswith(".py"):
        return None
    return Path(path).resolve()


def _is_installed(name: str, path: Path) -> bool:
    return str(path).startswith(_INSTALLED) and not name.startswith(_BUILT_IN)


def _used_by(module: ModuleType) -> Iterator[str]:
    for value in list(vars(module).values()):
        yield value.__name__ if isinstance(value, ModuleType) else _module_of(value)


def constants_of(paths: Iterable[Path]) -> list[Constant]:
    """Returns the integer constants in the source files `paths`. A file that cannot be read has
    none."""
    found: list[Constant] = []
    for path in paths:
        try:
            found += _constants_in(path, path.stat().st_mtime_ns)
        except (OSError, SyntaxError, ValueError, RecursionError):
            continue
    return found


@lru_cache(maxsize=256)
def _constants_in(path: Path, _changed: int) -> tuple[Constant, ...]:
    tree = ast.parse(path.read_bytes())
    found = dict.fromkeys(_constants(tree, ""))
    return tuple(Constant(name, value, f"{path.name}:{line}") for name, value, line in found)


def _constants(node: ast.AST, name: str) -> Iterator[tuple[str, int, int]]:
    """Yields (name, value, line) for the integers under `node`, whose value is called `name`."""
    value = _value(node)
    if value is not None and isinstance(node, ast.expr):
        yield name, value, node.lineno
        return
    for child, called in _children(node, name):
        yield from _constants(child, called)


def _children(node: ast.AST, name: str) -> Iterator[tuple[ast.AST, str]]:
    """Yields the parts of `node` that may hold lengths, each with the name that it is given."""
    match node:
        case ast.Assign(targets=[ast.Tuple(elts=targets)], value=ast.Tuple(elts=values)):
            yield from ((value, _name(target)) for target, value in zip(targets, values))  # noqa: B905
        case ast.Assign(targets=targets, value=value):
            yield value, _name(targets[-1])
        case ast.AnnAssign(target=target, value=ast.expr() as value):
            yield value, _name(target)
        case ast.AnnAssign():
            return
        case ast.keyword(arg=called, value=value):
            yield value, called or ""
        case ast.Dict(keys=keys, values=values):
            for key, value in zip(keys, values, strict=True):
                yield value, key.value if _is_word(key) else ""  # type: ignore[union-attr]
        case ast.Call(func=func) if "seed" in _name(func):
            return
        case ast.arguments():
            plain = [*node.posonlyargs, *node.args]
            pairs = [*zip(plain[len(plain) - len(node.defaults) :], node.defaults, strict=True)]
            pairs += [
                (arg, value)
                for arg, value in zip(node.kwonlyargs, node.kw_defaults, strict=True)
                if value is not None
            ]
            yield from ((value, arg.arg) for arg, value in pairs)
        case ast.Compare(left=left, comparators=[right]):
            yield left, _name(right)
            yield right, _name(left)
        case ast.expr():
            yield from ((child, "") for child in ast.iter_child_nodes(node))
        case _:
            yield from ((child, name) for child in ast.iter_child_nodes(node))


def _value(node: ast.AST) -> int | None:
    """Returns the integer that `node` is, also as a sum, product or power of constants."""
    match node:
        case ast.Constant(value=bool()):
            return None
        case ast.Constant(value=int() as value):
            return value
        case ast.BinOp(left=left, op=op, right=right):
            one, other = _value(left), _value(right)
            if one is None or other is None:
                return None
            if isinstance(op, ast.Pow) and 0 <= other <= LARGEST_POWER and abs(one) <= 16:
                return int(one**other)
            if type(op) in _OPERATORS and not (isinstance(op, ast.FloorDiv) and not other):
                return _OPERATORS[type(op)](one, other)
    return None


def _name(node: ast.AST) -> str:
    match node:
        case ast.Name(id=name) | ast.Attribute(attr=name):
            return name
    return ""


def _is_word(node: ast.AST | None) -> bool:
    return isinstance(node, ast.Constant) and isinstance(node.value, str)
