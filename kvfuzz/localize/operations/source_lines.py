"""Which lines of source an operation is named by: the model's own code, and that of its cache.

Torch, kvfuzz and the standard library are never named. A model's code is in the packages of its
modules' classes; what its own files and its cache's files call besides are helpers.
"""

from __future__ import annotations

import functools
import linecache
import sys
import sysconfig
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any

import torch
from torch import Tensor, nn

from kvfuzz.localize.location import Line, short_path

Place = tuple[str, int, str]
"""A file name, the number of a line, and the function that it is in."""
NOWHERE: Place = ("", 0, "")

_OURS = Path(__file__).parents[2]
_SKIPPED = (
    str(Path(torch.__file__).parent),
    str(_OURS),
    "<",
)
# So many lines of the model's packages are kept of each call.
_DEEPEST = 6
_CALLER = str(_OURS / "subjects" / "run.py")
_OWN_MODELS = str(_OURS / "subjects" / "zoo")
_STDLIB = sysconfig.get_paths()["stdlib"]


@dataclass(slots=True)  # not frozen, which takes its time to make
class Outer:
    """The lines of the model's packages that lead to a `frame`, the innermost first, and the
    innermost of other code that may be named."""

    frame: FrameType
    found: tuple[Place, ...]
    other: Place | None


class Homes:
    """Where the code of a subject and of its `model` is. `files` are the model's own files and
    folders."""

    def __init__(self, subject: Any, model: Any) -> None:
        classes = _classes(subject, model)
        self._roots = tuple({_root(name) for one in classes if (name := _source_of(one))})
        self._ranks: dict[str, int] = {}
        self._forwards: dict[type, Place] = {}
        self.files = _own_files(subject, model)

    def places(self, frame: FrameType | None, outer: Outer | None = None) -> tuple[Place, ...]:
        """The lines of the model's packages that lead to `frame`, the innermost first; if there is
        none, the innermost of code that is neither torch nor kvfuzz nor the standard library. Of
        frames outside `outer` the lines are known."""
        found, other = self._lines(frame, outer)
        return found or ((other,) if other else ())

    def outer(self, frame: FrameType, further: Outer | None) -> Outer:
        """What leads to `frame`, the call of a module, inside which it need not be told again."""
        return Outer(frame, *self._lines(frame, further))

    def _lines(
        self, frame: FrameType | None, outer: Outer | None
    ) -> tuple[tuple[Place, ...], Place | None]:
        found: list[Place] = []
        other: Place | None = None
        ranks = self._ranks
        while frame is not None and len(found) < _DEEPEST:
            if outer is not None and frame is outer.frame:
                return (*found, *outer.found)[:_DEEPEST], other or outer.other
            code = frame.f_code
            filename = code.co_filename
            if filename == _CALLER:
                break
            rank = ranks.get(filename)
            if rank is None:
                rank = self._rank(filename)
            if rank:
                place = filename, frame.f_lineno, code.co_qualname
                if rank == 2:
                    found.append(place)
                other = other or place
            frame = frame.f_back
        return tuple(found), other

    def of(self, one: type) -> Place:
        """Where the forward of a class of modules is."""
        if one not in self._forwards:
            code = getattr(getattr(one, "forward", None), "__code__", None)
            name = f"{one.__qualname__}.forward"
            filename, line = (
                (code.co_filename, code.co_firstlineno) if code else (_source_of(one), 0)
            )
            self._forwards[one] = filename, line, name
        return self._forwards[one]

    def raised_at(self, error: BaseException) -> Place | None:
        """The innermost line of the model's packages that `error` came through."""
        found, traceback = None, error.__traceback__
        while traceback is not None:
            code = traceback.tb_frame.f_code
            if self._rank(code.co_filename) == 2:
                found = code.co_filename, traceback.tb_lineno, code.co_qualname
            traceback = traceback.tb_next
        return found

    def add(self, answer: Any) -> None:
        """Count the classes of what is no tensor in a model's `answer`, its cache, as its own."""
        self.files |= set(_files_of_objects(answer))

    def _rank(self, filename: str) -> int:
        if filename not in self._ranks:
            self._ranks[filename] = _rank_of(filename, self._roots)
        return self._ranks[filename]


def named(places: Sequence[Place], files: Iterable[str], helped: bool) -> Line | None:
    """The line to name of `places`, the innermost first: in the model's own `files` before any
    helper that these call, unless it is `helped` on purpose, as positions and masks are. None where
    nothing but torch was seen."""
    own = [place for place in places if place[0].startswith(tuple(files))]
    chosen = places if helped or not own else own
    return line_at(chosen[0]) if chosen else None


def caller(places: Iterable[Place]) -> Line | None:
    """The line of a module's forward among `places`."""
    found = next((place for place in places if place[2].endswith(".forward")), None)
    return line_at(found) if found else None


def line_at(place: Place) -> Line:
    """The line of source at `place`, with its text."""
    filename, number, function = place
    text = linecache.getline(filename, number).strip()
    return Line(short_path(filename), number, text, function)


def _classes(subject: Any, model: Any) -> set[type]:
    """The classes of the model's code."""
    classes = {type(subject), type(model)}
    if isinstance(model, nn.Module):
        classes |= {type(module) for module in model.modules()}
    return {one for one in classes if not _is_skipped(_source_of(one))}


def _own_files(subject: Any, model: Any) -> set[str]:
    """The folder of the model's class, and the files of the classes of its modules that hold
    others: what these use besides are helpers."""
    if not isinstance(model, nn.Module) or _is_skipped(_source_of(type(model))):
        return {_source_of(type(subject))}
    outer = {type(module) for module in model.modules() if next(module.children(), None)}
    files = {_source_of(one) for one in outer if not _is_skipped(_source_of(one))}
    return files | {str(Path(_source_of(type(model))).parent) + "/"}


def _files_of_objects(output: Any) -> Iterator[str]:
    """The files of the classes of what is no tensor in a model's answer: its cache."""
    values = output.values() if isinstance(output, Mapping) else output
    if isinstance(values, Tensor | str) or not isinstance(values, Iterable):
        return
    for value in values:
        if not isinstance(value, Tensor | Mapping | tuple | list | str | int | float | None):
            filename = _source_of(type(value))
            if filename and not _is_skipped(filename):
                yield filename


def _rank_of(filename: str, homes: Sequence[str]) -> int:
    """2 for the model's code, 1 for other code that may be named, 0 for what may not."""
    if _is_skipped(filename):
        return 0
    if any(filename == home or filename.startswith(home + "/") for home in homes):
        return 2
    inside = filename.startswith(_STDLIB) and "site-packages" not in filename
    return 0 if inside else 1


def _is_skipped(filename: str) -> bool:
    return filename.startswith(_SKIPPED) and not filename.startswith(_OWN_MODELS)


@functools.lru_cache(maxsize=1024)
def _root(filename: str) -> str:
    """The folder of the package that `filename` is in, or the file itself outside packages."""
    root = Path(filename).parent
    if not (root / "__init__.py").exists():
        return filename
    while (root.parent / "__init__.py").exists():
        root = root.parent
    return str(root)


def _source_of(one: type) -> str:
    module = sys.modules.get(one.__module__)
    return getattr(module, "__file__", None) or ""
