"""Digests the code that decides whether a fault is equivalent: its own, and what it replaces.

Comments, docstrings, annotations, formatting and other faults in the file do not count, so that a
note of a confirmed fault stays valid while they change.
"""

from __future__ import annotations

import ast
import hashlib
import inspect
import textwrap
from collections.abc import Iterator
from importlib import import_module
from types import FunctionType, ModuleType
from typing import Any

from mutants.mutant import ZOO, Mutant

CONSTANT = (int, float, str, tuple, type(None))
"""A constant of a module counts by its value, if it is one of these."""


def code_digest(mutant: Mutant, *parts: Any) -> str:
    """A digest of the code of `mutant`, its targets and settings, and of `parts`.

    Code is the fault's function, the functions or whole classes that its targets are in, and all
    that these name in the fault's file and in the built-in decoder, and so on. Other code of the
    decoder does not count: the tests confirm each fault again on shorter programs.
    """
    homes = (mutant.fault.__module__, ZOO)
    replaced = [_owner(target) for target in mutant.targets]
    shapes = sorted(repr(shape) for shape in _shapes([mutant.fault, *replaced], homes))
    told = (mutant.id, mutant.targets, dict(mutant.needs), parts, shapes)
    return hashlib.sha256(repr(told).encode()).hexdigest()


def _owner(target: str) -> Any:
    """The function that `target` names, or the class whose method it is."""
    module, _, path = target.partition(":")
    return getattr(import_module(module), path.partition(".")[0])


def _shapes(start: list[Any], homes: tuple[str, ...]) -> Iterator[Any]:
    """The shape of each function, class and constant that `start` names, directly or not."""
    to_do, done = list(start), set[int]()
    while to_do:
        thing = inspect.unwrap(to_do.pop())
        if id(thing) in done or not thing.__module__.startswith(homes):
            continue
        done.add(id(thing))
        tree = _pruned(ast.parse(textwrap.dedent(inspect.getsource(thing))).body[0])
        yield thing.__qualname__, _shape(tree)
        for name, value in _named(tree, vars(import_module(thing.__module__))).items():
            if isinstance(value, FunctionType | type):
                to_do.append(value)
            elif isinstance(value, CONSTANT):
                yield thing.__qualname__, name, value


def _pruned(tree: ast.stmt) -> ast.stmt:
    """`tree` without docstrings and annotations, and without the decorator of a fault, which holds
    its reason and its witness."""
    if isinstance(tree, ast.FunctionDef):
        tree.decorator_list = []
    for node in ast.walk(tree):
        match node:
            case ast.FunctionDef() | ast.ClassDef():
                if ast.get_docstring(node, clean=False) is not None:
                    del node.body[0]
                if isinstance(node, ast.FunctionDef):
                    node.returns = None
            case ast.arg():
                node.annotation = None
            case ast.AnnAssign():
                node.annotation = ast.Constant(None)
    return tree


def _named(tree: ast.AST, names: dict[str, Any]) -> dict[str, Any]:
    """What `tree` names of the `names` of its module, and of modules that it imports."""
    found: dict[str, Any] = {}
    for node in ast.walk(tree):
        match node:
            case ast.Name(id=name) if name in names:
                found[name] = names[name]
            case ast.Attribute(value=ast.Name(id=name), attr=attribute):
                if isinstance(names.get(name), ModuleType):
                    found[f"{name}.{attribute}"] = getattr(names[name], attribute, None)
    return found


def _shape(node: Any) -> Any:
    """`node` as nested tuples, the same in every version of Python; `ast.dump` is not."""
    if isinstance(node, list):
        return tuple(map(_shape, node))
    if not isinstance(node, ast.AST):
        return node
    fields = ((name, value) for name, value in ast.iter_fields(node) if value not in (None, []))
    return type(node).__name__, *((name, _shape(value)) for name, value in fields)
