"""Draws faults: a statement that both or one of the paths run, a kind of fault, a condition."""

from __future__ import annotations

import ast
import random
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any

import torch

from benchmarks.generated.kinds import CONDITIONS, KINDS, SKIP, Change, Shapes
from kvfuzz.case.case import Case
from kvfuzz.case.layout import layout
from kvfuzz.case.schedule import Crop, Entry, Reorder
from kvfuzz.subjects.protocol import Factory
from kvfuzz.subjects.run import Refused, run_cached, run_uncached

Lines = Mapping[tuple[str, int], Shapes]
"""The shapes of local tensors by the lines (module, number) that were run."""

SHARED_FILES = ("cache_utils", "masking_utils")
SHARED = 0.2
"""How often a fault is put into the files that all models of the library share."""
_NEVER = ("__init__", "length", "__post_init__")
_STATEMENTS = (ast.Assign, ast.AugAssign, ast.Expr, ast.Return, ast.If)
_LAYER = re.compile(r"self\.(layer_idx|layer_id|index)\b")


@dataclass(frozen=True)
class Fault:
    """A fault of a `kind` under a `condition`, on the `lines` of a statement of the module
    `file`: the text from `start` to `stop` `becomes` another. `function` are the first and the
    last line of the innermost function around it."""

    model: str
    kind: str
    condition: str
    file: str
    lines: tuple[int, int]
    function: tuple[int, int]
    start: int
    stop: int
    becomes: str
    before: str

    def applied(self, source: str) -> tuple[str, int]:
        """Returns the source with the fault, and the number of its line. No line moves."""
        old = source[self.start : self.stop]
        new = self.becomes + "\n" * (old.count("\n") - self.becomes.count("\n"))
        if self.becomes.endswith(")"):
            new = self.becomes[:-1] + "\n" * (old.count("\n") - self.becomes.count("\n")) + ")"
        text = source[: self.start] + new + source[self.stop :]
        return text + "\nfrom benchmarks.generated import when as _when\n", self.lines[0]


@dataclass(frozen=True)
class Site:
    """A statement of a module that was run, in the innermost function around it."""

    file: str
    statement: ast.stmt
    function: ast.FunctionDef
    shapes: Shapes
    layer: str | None


class Watch:
    """Notes the lines of the files of a `folder` that run, with the shapes of local tensors."""

    def __init__(self, folder: Path) -> None:
        self._folder = str(folder)
        self.lines: dict[tuple[str, int], dict[str, tuple[object, ...]]] = {}

    def __call__(self, frame: FrameType, event: str, _: Any) -> Any:
        path = Path(frame.f_code.co_filename)
        if str(path.parent) != self._folder:
            return None
        if event == "line" and frame.f_code.co_name != "<module>":
            found = self.lines.setdefault((path.stem, frame.f_lineno), {})
            for name, value in frame.f_locals.items():
                if isinstance(value, torch.Tensor):
                    found[name] = (*value.shape, value.dtype)
        return self


def fixed_cases(factory: Factory) -> Iterator[Case]:
    """Yields a few cases: a prompt, decodes and a chunk, with a crop and a reorder where these are
    offered and without; token by token; in chunks."""
    limits = factory.limits()
    more: list[Entry] = [Crop(1)] if "crop" in limits.offers else []
    more += [Reorder((1, 0))] if "reorder" in limits.offers else []
    rows = [[(5 * row + 3 * at + 1) % limits.vocab_size for at in range(9)] for row in range(2)]
    for schedule in ((5, 1, *more, 2, 1), (5, 1, 2, 1), (1,) * 9, (3, 4, 2)):
        tokens = tuple(map(tuple, rows))
        yield Case(tokens, schedule, 1, factory.dtypes[0], factory.first_config())


def lines_run(factory: Factory, folder: Path) -> Lines:
    """Returns the lines of a copied model that the two paths run."""
    watch = Watch(folder)
    for case in list(fixed_cases(factory))[:2]:
        subject = factory.subject(case)
        sys.settrace(watch)
        try:
            run_cached(subject, case)
            run_uncached(subject, layout(case).sequences)
        except Refused:
            continue  # such as a window that has forgotten what a crop needs
        finally:
            sys.settrace(None)
    return watch.lines


def sites_in(file: str, source: str, lines: Lines) -> Iterator[Site]:
    """Yields the statements of a module that were run."""
    tree = ast.parse(source)
    functions = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)]
    classes = [node for node in ast.walk(tree) if isinstance(node, ast.ClassDef)]
    for function in functions:
        if function.name in _NEVER:
            continue
        owner = next((one for one in classes if function in one.body), None)
        text = ast.get_source_segment(source, owner) if owner else None
        attribute = _LAYER.search(text) if text else None
        for statement in _own_statements(function):
            shapes = lines.get((file, statement.lineno))
            if shapes is not None and not _is_docstring(statement):
                layer = f"self.{attribute.group(1)}" if attribute else None
                yield Site(file, statement, function, shapes, layer)


def _is_docstring(statement: ast.stmt) -> bool:
    return isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)


def _own_statements(function: ast.FunctionDef) -> Iterator[ast.stmt]:
    waiting: list[ast.AST] = list(function.body)
    while waiting:
        node = waiting.pop()
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            continue
        if isinstance(node, _STATEMENTS):
            yield node
        waiting += [child for child in ast.iter_child_nodes(node) if isinstance(child, ast.stmt)]


def draw_fault(
    rng: random.Random, model: str, sources: Mapping[str, str], sites: Sequence[Site]
) -> Fault | None:
    """Draws a kind, then one of the places where it fits, then a condition; None if the kind fits
    nowhere in the model."""
    kind = rng.choice(sorted(KINDS))
    shared = rng.random() < SHARED
    of_file = [site for site in sites if (site.file in SHARED_FILES) == shared] or sites
    places = [
        (site, change) for site in of_file for change in KINDS[kind](site.statement, site.shapes)
    ]
    if not places:
        return None
    site, change = rng.choice(places)
    known = [name for name in CONDITIONS if name != "layer 1" or site.layer]
    condition = rng.choice(known)
    asked = CONDITIONS[condition].replace("LAYER", site.layer or "")
    source = sources[site.file]
    start, stop = (_offset(source, *at) for at in _ends(change.node))
    old = source[start:stop]
    last = site.statement.test if isinstance(site.statement, ast.If) else site.statement
    owner = "self" if any(arg.arg == "self" for arg in site.function.args.args) else "None"
    new = _conditional(change, old, asked).replace("OWNER", owner)
    span = site.statement.lineno, last.end_lineno or site.statement.lineno
    around = (site.function.lineno, site.function.end_lineno or 0)
    before = " ".join((ast.get_source_segment(source, last) or "").split())
    return Fault(model, kind, condition, site.file, span, around, start, stop, new, before)


def _conditional(change: Change, old: str, asked: str) -> str:
    if change.becomes == SKIP:
        return f"if not ({asked}): {old}" if asked else SKIP
    return f"(({change.becomes}) if {asked} else ({old}))" if asked else f"({change.becomes})"


def _ends(node: ast.expr | ast.stmt) -> tuple[tuple[int, int], tuple[int, int]]:
    return (node.lineno, node.col_offset), (node.end_lineno or 0, node.end_col_offset or 0)


def _offset(text: str, line: int, column: int) -> int:
    """Returns the index in `text` of a place of its tree, whose columns count bytes."""
    lines = text.splitlines(keepends=True)
    return sum(map(len, lines[: line - 1])) + len(lines[line - 1].encode()[:column].decode())
