"""Copies of the library's modeling code in a package of their own, with one fault or none.

A copy holds a model's file and the library's cache and mask code, which import each other and
otherwise the installed library. Relative imports become absolute ones and a fault changes a line in
place, so that each line has the number that it has in the library.
"""

from __future__ import annotations

import importlib
import linecache
import re
import shutil
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Protocol

RELEASE = "5.24.0"
"""The release of transformers that the table of faults was written for."""
CACHE, MASKS = "cache_utils", "masking_utils"
_RELATIVE = re.compile(r"^(\s*from )(\.+)([\w.]*)( import )", re.MULTILINE)


Place = tuple[str, int]
"""A module of a copy, and the number of a line of it."""


class BadAnchor(Exception):
    """The source does not hold a snippet as often as it should."""


@dataclass(frozen=True, slots=True)
class Anchor:
    """A snippet within one line of `file` (a copy's module, the model's own if empty), which
    occurs once, or the occurrence `nth` (from 1) of `of`."""

    text: str
    file: str = ""
    nth: int = 1
    of: int = 1

    def line(self, source: str) -> int:
        """Returns the number of its line in `source`, from 1. Raises BadAnchor."""
        found = [n for n, line in enumerate(source.splitlines(), 1) if self.text in line]
        if len(found) != self.of:
            raise BadAnchor(f"{self.text!r} is on {len(found)} lines, should be on {self.of}")
        return found[self.nth - 1]


@dataclass(frozen=True, slots=True)
class Edit:
    """Replaces the text at an anchor by what it `becomes`, within one line, so that no line
    moves."""

    anchor: Anchor
    becomes: str

    @property
    def file(self) -> str:
        """The module that it changes, the model's own if empty."""
        return self.anchor.file

    def applied(self, source: str) -> tuple[str, int]:
        """Returns the source with the fault, and the number of its line."""
        number = self.anchor.line(source)
        lines = source.splitlines()
        lines[number - 1] = lines[number - 1].replace(self.anchor.text, self.becomes)
        return "\n".join(lines) + "\n", number


class Change(Protocol):
    """A change of one module of a copy, in place."""

    @property
    def file(self) -> str: ...

    def applied(self, source: str) -> tuple[str, int]: ...


@dataclass(frozen=True)
class Copy:
    """An imported copy: the module of the `model`, that of its `caches`, the `folder` that they
    are in, and the `lines` (module, number) of its fault."""

    model: ModuleType
    caches: ModuleType
    folder: Path
    lines: frozenset[Place]

    @property
    def package(self) -> str:
        return self.folder.name

    def forget(self) -> None:
        """Removes it, so that the next copy of this name is imported afresh."""
        for name in [name for name in sys.modules if name.split(".")[0] == self.package]:
            del sys.modules[name]
        shutil.rmtree(self.folder)
        linecache.checkcache()


def installed_release() -> str:
    import transformers

    return transformers.__version__


def library_file(module: str) -> Path:
    """Returns the installed file of `module`: that of a model, such as "llama", or CACHE or
    MASKS."""
    import transformers

    root = Path(transformers.__file__).parent
    if module in (CACHE, MASKS):
        return root / f"{module}.py"
    return root / "models" / module / f"modeling_{module}.py"


def copied(model: str, name: str, root: Path, edits: Sequence[Change] = ()) -> Copy:
    """Imports a copy of the code of `model`, with `edits`, as the package `name` below `root`.
    Raises BadAnchor."""
    folder = root / name
    folder.mkdir(parents=True)
    (folder / "__init__.py").write_text("")
    lines: set[Place] = set()
    for module in (CACHE, MASKS, model):
        path = library_file(module)
        text = path.read_text(encoding="utf-8")
        for edit in edits:
            if (edit.file or model) in (module, path.stem):
                text, number = edit.applied(text)
                lines.add((path.stem, number))
        here = "transformers" if module != model else f"transformers.models.{model}"
        (folder / path.name).write_text(_absolute(text, here, name), encoding="utf-8")
    if str(root) not in sys.path:
        sys.path.insert(0, str(root))
    importlib.invalidate_caches()
    stem = library_file(model).stem
    own = importlib.import_module(f"{name}.{stem}")
    caches = importlib.import_module(f"{name}.{CACHE}")
    return Copy(own, caches, folder, frozenset(lines))


def _absolute(text: str, here: str, package: str) -> str:
    """Returns `text`, of a module in the package `here`, with absolute imports, and with imports of
    copied modules from `package`."""

    def full(match: re.Match[str]) -> str:
        start, dots, rest, end = match.groups()
        parts = here.split(".")[: len(here.split(".")) + 1 - len(dots)]
        name = ".".join(filter(None, [*parts, rest]))
        if name in (f"transformers.{CACHE}", f"transformers.{MASKS}"):
            name = name.replace("transformers", package)
        return f"{start}{name}{end}"

    return _RELATIVE.sub(full, text)
