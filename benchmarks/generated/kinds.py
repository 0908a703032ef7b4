"""The kinds of faults: each finds where it fits in a statement, and what is put there."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import TypeVar

Node = TypeVar("Node", bound=ast.AST)
SKIP = "pass"
"""Stands for a statement that is not run."""
Shapes = Mapping[str, tuple[object, ...]]
"""The shapes and dtypes of the tensors by the names of local variables."""


@dataclass(frozen=True)
class Change:
    """Puts the source `becomes` in the place of `node`."""

    node: ast.expr | ast.stmt
    becomes: str


def index_off_by_one(statement: ast.stmt, _: Shapes) -> Iterator[Change]:
    """An index, or a bound of a slice or of a range, is one more or less."""
    for node in expressions(statement, ast.Subscript):
        parts = node.slice.elts if isinstance(node.slice, ast.Tuple) else [node.slice]
        bounds = [p for part in parts for p in _bounds(part)]
        yield from _by_one(bounds)
    for call in expressions(statement, ast.Call):
        if called(call) in ("arange", "narrow", "range", "tril", "triu"):
            yield from _by_one([a for a in call.args if not isinstance(a, ast.Starred)])


def _bounds(part: ast.expr) -> list[ast.expr]:
    if isinstance(part, ast.Slice):
        return [bound for bound in (part.lower, part.upper) if bound is not None]
    plain = isinstance(part, ast.Constant) and isinstance(part.value, int)
    return [part] if plain or isinstance(part, ast.UnaryOp | ast.BinOp) else []


def _by_one(bounds: list[ast.expr]) -> Iterator[Change]:
    for bound in bounds:
        for sign in "+-":
            yield Change(bound, f"({ast.unparse(bound)} {sign} 1)")


def swapped_arguments(statement: ast.stmt, _: Shapes) -> Iterator[Change]:
    for call in expressions(statement, ast.Call):
        args = call.args
        if len(args) < 2 or any(isinstance(arg, ast.Starred) for arg in args[:2]):
            continue
        if ast.unparse(args[0]) != ast.unparse(args[1]):
            new = ast.Call(call.func, [args[1], args[0], *args[2:]], call.keywords)
            yield Change(call, ast.unparse(new))


def wrong_variable(statement: ast.stmt, shapes: Shapes) -> Iterator[Change]:
    """Another variable of the same shape and dtype is read."""
    for name in expressions(statement, ast.Name):
        if isinstance(name.ctx, ast.Load) and name.id in shapes:
            for other, shape in shapes.items():
                if other != name.id and shape == shapes[name.id]:
                    yield Change(name, other)


def sign_swapped(statement: ast.stmt, _: Shapes) -> Iterator[Change]:
    for node in expressions(statement, ast.BinOp):
        if isinstance(node.op, ast.Add | ast.Sub):
            other = ast.Sub() if isinstance(node.op, ast.Add) else ast.Add()
            yield Change(node, f"({ast.unparse(ast.BinOp(node.left, other, node.right))})")
    if isinstance(statement, ast.AugAssign) and isinstance(statement.op, ast.Add | ast.Sub):
        yield Change(statement.value, f"(-({ast.unparse(statement.value)}))")


def constant_changed(statement: ast.stmt, _: Shapes) -> Iterator[Change]:
    inside = {
        id(part) for node in expressions(statement, ast.Subscript) for part in ast.walk(node.slice)
    }
    for node in expressions(statement, ast.Constant):
        if id(node) in inside or isinstance(node.value, bool):
            continue
        if isinstance(node.value, int):
            yield Change(node, str(node.value + 1))
        elif isinstance(node.value, float):
            yield Change(node, repr(node.value * 1.1 if node.value else 0.1))


def statement_skipped(statement: ast.stmt, _: Shapes) -> Iterator[Change]:
    """A variable keeps its value, or nothing is written."""
    match statement:
        case ast.Assign(targets=[ast.Name(id=name)], value=value):
            if any(isinstance(n, ast.Name) and n.id == name for n in ast.walk(value)):
                yield Change(value, name)
        case ast.AugAssign() | ast.Expr(value=ast.Call()):
            yield Change(statement, SKIP)
        case ast.Assign(targets=[ast.Subscript() as target], value=value):
            yield Change(value, ast.unparse(target))


def condition_negated(statement: ast.stmt, _: Shapes) -> Iterator[Change]:
    if isinstance(statement, ast.If):
        yield Change(statement.test, f"(not ({ast.unparse(statement.test)}))")
    for node in expressions(statement, ast.IfExp):
        yield Change(node.test, f"(not ({ast.unparse(node.test)}))")


_ALONG = {
    "cat",
    "stack",
    "softmax",
    "sum",
    "mean",
    "transpose",
    "unsqueeze",
    "squeeze",
    "chunk",
} | {
    "cumsum",
    "flatten",
    "repeat_interleave",
    "index_select",
    "split",
}


def wrong_dim(statement: ast.stmt, _: Shapes) -> Iterator[Change]:
    for call in expressions(statement, ast.Call):
        if called(call) not in _ALONG:
            continue
        dims = [word.value for word in call.keywords if word.arg in ("dim", "axis")]
        if called(call) in ("transpose", "unsqueeze", "squeeze", "softmax", "sum", "mean"):
            dims += call.args[-1:]
        elif called(call) in ("cat", "stack", "cumsum"):
            dims += call.args[1:2]
        for dim in dims:
            if isinstance(dim, ast.UnaryOp | ast.Constant) and _is_whole(dim):
                number = ast.literal_eval(dim)
                yield from (Change(dim, f"({number + by})") for by in (1, -1))


def _is_whole(node: ast.expr) -> bool:
    try:
        value = ast.literal_eval(node)
    except ValueError:
        return False
    return isinstance(value, int) and not isinstance(value, bool)


_SCALE = re.compile(r"scal|sqrt|\*\* ?-?0\.5|factor|multiplier|rsqrt|norm_")


def missing_scale(statement: ast.stmt, _: Shapes) -> Iterator[Change]:
    for node in expressions(statement, ast.BinOp):
        if isinstance(node.op, ast.Mult | ast.Div) and _SCALE.search(ast.unparse(node.right)):
            yield Change(node, f"({ast.unparse(node.left)})")


def stale_value(statement: ast.stmt, _: Shapes) -> Iterator[Change]:
    """The result of the call before is used again."""
    match statement:
        case ast.Assign(targets=[ast.Name(id=name)], value=value) if not isinstance(
            value, ast.Constant
        ):
            yield Change(value, f"_when.stale(OWNER, {name!r}, {ast.unparse(value)})")


Kind = Callable[[ast.stmt, Shapes], Iterator[Change]]
KINDS: Mapping[str, Kind] = {
    "index off by one": index_off_by_one,
    "arguments swapped": swapped_arguments,
    "wrong variable": wrong_variable,
    "sign swapped": sign_swapped,
    "constant changed": constant_changed,
    "statement skipped": statement_skipped,
    "condition negated": condition_negated,
    "wrong dim": wrong_dim,
    "scale missing": missing_scale,
    "stale value": stale_value,
}

CONDITIONS: Mapping[str, str] = {
    "always": "",
    "cache filled": "_when.filled()",
    "single token": "_when.single()",
    "position > 2": "_when.beyond(2)",
    "position > 5": "_when.beyond(5)",
    "layer 1": "LAYER == 1",
}
"""When a fault shows, each with what is asked; LAYER is the layer's number on `self`."""


def expressions(statement: ast.stmt, kind: type[Node]) -> Iterator[Node]:
    """Yields the expressions of a `kind` in a statement itself, not in statements inside it."""
    waiting: list[ast.AST] = [statement]
    while waiting:
        node = waiting.pop()
        if isinstance(node, kind):
            yield node
        passed = (ast.stmt, ast.JoinedStr, ast.Lambda, ast.ExceptHandler)
        waiting += [one for one in ast.iter_child_nodes(node) if not isinstance(one, passed)]


def called(call: ast.Call) -> str:
    """Returns the last name of what is called."""
    func = call.func
    return func.attr if isinstance(func, ast.Attribute) else getattr(func, "id", "")
