"""Draws mutations of mutmut's kind: of operators, constants, comparisons, booleans and returns."""

from __future__ import annotations

import ast
import copy
import random
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

PACKAGES = ("kvfuzz/oracle", "kvfuzz/search", "mutants/campaign")
"""Those that judge and search."""

EQUIVALENT: dict[tuple[str, str, str, str], str] = {
    (
        "kvfuzz/search/reductions.py",
        "replace(entry, cache=entry.cache - sum(number < entry.cache for number in gone))",
        "number < entry.cache",
        "number <= entry.cache",
    ): "the condition of the comprehension leaves out a switch whose cache is in `gone`, so no "
    "number there equals `entry.cache`",
}
"""Mutations that change nothing that can be seen, each with its proof: by file, line, and the code
before and after."""

LIKELY = {
    "kvfuzz/oracle": (
        "tests/test_compare.py",
        "tests/test_agreement.py",
        "tests/test_tolerance.py",
        "tests/test_laws.py",
        "tests/test_sensitivity.py",
        "tests/test_noise.py",
        "tests/test_wild.py",
    ),
    "kvfuzz/search": (
        "tests/test_shrinking.py",
        "tests/test_pool.py",
        "tests/test_laws.py",
        "tests/test_expectations.py",
        "tests/test_replaying.py",
        "tests/test_collecting.py",
        "tests/test_programs.py",
        "tests/test_hunt.py",
        "tests/test_pool.py",
        "tests/test_laws.py",
        "tests/test_strategies.py",
        "tests/test_calibrating.py",
        "tests/quality/test_stories.py",
        "tests/quality/test_shrunk.py",
    ),
    "mutants/campaign": ("tests/mutants",),
}
"""The tests of each package, which run before all others."""

SWAPPED: dict[type, type] = {
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.Div,
    ast.Div: ast.Mult,
    ast.FloorDiv: ast.Div,
    ast.Mod: ast.Div,
    ast.Pow: ast.Mult,
    ast.BitAnd: ast.BitOr,
    ast.BitOr: ast.BitAnd,
    ast.And: ast.Or,
    ast.Or: ast.And,
}


@dataclass(frozen=True)
class Mutation:
    """A mutation of the code `before` into `after`, on a `line` of `file`; the whole `text` of the
    file after it."""

    file: str
    line: str
    before: str
    after: str
    text: str


def draw_mutations(root: Path, seed: int) -> Iterator[Mutation]:
    """Yields all mutations of PACKAGES in an order that `seed` decides."""
    files = sorted(path for package in PACKAGES for path in (root / package).rglob("*.py"))
    found = [each for path in files for each in mutations(path, root)]
    yield from random.Random(seed).sample(found, len(found))


def likely_tests(mutation: Mutation) -> tuple[str, ...]:
    """Returns the tests of the package of `mutation`."""
    return next(tests for name, tests in LIKELY.items() if mutation.file.startswith(name))


def mutations(path: Path, root: Path) -> Iterator[Mutation]:
    """Yields the mutations of one file, in the order of its code."""
    text = path.read_text(encoding="utf-8")
    tree = ast.parse(text)
    passed = set(map(id, never_run(tree)))
    for node in ast.walk(tree):
        if id(node) in passed or not isinstance(node, ast.expr | ast.Return):
            continue
        for changed in changes(node):
            before = ast.get_source_segment(text, node)
            assert before is not None
            after = ast.unparse(changed)
            start = offset(text, node.lineno, node.col_offset)
            stop = offset(text, node.end_lineno or 0, node.end_col_offset or 0)
            # In parentheses, since precedence may differ after the change.
            put = f"({after})" if isinstance(node, ast.expr) else after
            broken = text[:start] + put + text[stop:]
            line = text.splitlines()[node.lineno - 1].strip()
            before = " ".join(before.split())
            yield Mutation(str(path.relative_to(root)), line, before, after, broken)


def never_run(tree: ast.Module) -> Iterator[ast.AST]:
    """Yields the nodes whose change is no change: annotations and Literal types, which nothing
    evaluates, docstrings, and the parts of f-strings, which have no place of their own."""
    for node in ast.walk(tree):
        parts: list[ast.AST | None] = []
        match node:
            case ast.FunctionDef():
                parts = [node.returns]
            case ast.arg() | ast.AnnAssign():
                parts = [node.annotation]
            case ast.Expr(value=ast.Constant()) | ast.Subscript(value=ast.Name(id="Literal")):
                parts = [node]
            case ast.JoinedStr():
                parts = [part for part in node.values if isinstance(part, ast.Constant)]
                parts += [p.format_spec for p in node.values if isinstance(p, ast.FormattedValue)]
        for part in filter(None, parts):
            yield from ast.walk(part)


def changes(node: ast.AST) -> Iterator[ast.AST]:
    """Yields `node` changed in every way that mutmut has for its kind."""
    new = copy.deepcopy(node)
    match new:
        case ast.Compare(ops=[one]):
            new.ops = [SWAPPED[type(one)]()]
        case ast.BinOp() if type(new.op) in SWAPPED:
            new.op = SWAPPED[type(new.op)]()
        case ast.BoolOp():
            new.op = SWAPPED[type(new.op)]()
        case ast.UnaryOp(op=ast.Not() | ast.USub() | ast.Invert()):
            new = new.operand
        case ast.Constant(value=bool()):
            new.value = not new.value
        case ast.Constant(value=int() | float()):
            new.value += 1
        case ast.Constant(value=str()):
            new.value = f"XX{new.value}XX"
        case ast.Return(value=value) if value is not None and not is_none(value):
            new.value = ast.Constant(None)
        case _:
            return
    yield new


def is_none(node: ast.AST) -> bool:
    return isinstance(node, ast.Constant) and node.value is None


def offset(text: str, line: int, column: int) -> int:
    """Returns the index in `text` of a place of its tree, whose columns count bytes."""
    lines = text.splitlines(keepends=True)
    before = lines[line - 1].encode()[:column].decode()
    return sum(map(len, lines[: line - 1])) + len(before)
