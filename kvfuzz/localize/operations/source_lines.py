"""Finds the source line that an operation is named by, in the model's code or its cache's.

Torch, kvfuzz and the standard library are never named. The model's code is the packages that
define the classes of its modules. Code that the model's own files and its cache's files call, in
other files of those packages, counts as helpers.
"""

from __future__ import annotations

import functools
import inspect
import linecache
import sys
import sysconfig
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import torch
from torch import Tensor, nn

from kvfuzz.localize.location import Line, short_path
from kvfuzz.subjects.float64 import WRAPPERS, unwrapped

SourcePlace = tuple[str, int, str]
"""A file name, a line number, and the function that the line is in."""
NOWHERE: SourcePlace = ("", 0, "")

_KVFUZZ = Path(__file__).parents[2]
_SKIPPED = (
    str(Path(torch.__file__).parent),
    str(_KVFUZZ),
    "<",  # code without a file, such as `<string>`
)
# At most this many lines of the model's packages are kept per call.
_MAX_LINES = 6
# Every forward call starts in this file: the frames outside it are not the model's.
_ENTRY = str(_KVFUZZ / "subjects" / "run.py")
_ENTERS = -1
# The built-in decoder is part of kvfuzz, and a model all the same.
_OWN_MODELS = str(_KVFUZZ / "subjects" / "zoo")
_STDLIB = sysconfig.get_paths()["stdlib"]


@dataclass(slots=True)  # not frozen, which would be slower: one is made for every module call
class CallerLines:
    """The lines of the model's packages that lead to a `frame`, innermost first, and the innermost
    line of `other` code that may be named."""

    frame: FrameType
    found: tuple[SourcePlace, ...]
    other: SourcePlace | None


@dataclass(slots=True)
class _FrameLine:
    """The line that a frame is at: its `rank` (`_rank_of`, or _ENTERS), its `place`, and its
    `code`, which lives as long as this, so that its id stays its own."""

    rank: int
    place: SourcePlace
    code: CodeType


class ModelCode:
    """The source files of a subject and of its `model`. `files` are the model's own files and
    folders, without helpers."""

    def __init__(self, subject: Any, model: Any) -> None:
        classes = _classes(subject, model)
        outside = {name for one in classes if (name := _file_of(one)) and not _is_skipped(name)}
        self._roots = tuple({_package_root(name) for name in outside})
        self._adapters = frozenset() if outside else _adapters(subject, classes)
        self._ranks: dict[str, int] = {}
        # Python computes the line of a frame anew each time it is asked for.
        self._known: dict[tuple[int, int], _FrameLine] = {}
        self._forwards: dict[type, SourcePlace] = {}
        self.files = _own_files(subject, model)

    def places(
        self, frame: FrameType | None, outer: CallerLines | None = None
    ) -> tuple[SourcePlace, ...]:
        """Returns the lines of the model's packages that lead to `frame`, innermost first.

        Without any: the innermost line that is neither torch's, kvfuzz's nor the standard
        library's. `outer` holds the lines outside a frame that are known already.
        """
        found, other = self._walk(frame, outer)
        return found or ((other,) if other else ())

    def caller_lines(self, frame: FrameType, outer: CallerLines | None) -> CallerLines:
        """Returns the lines that lead to `frame`, the call of a module.

        Operations inside the module reuse them: walking the whole stack for each operation would
        dominate the recording.
        """
        return CallerLines(frame, *self._walk(frame, outer))

    def _walk(
        self, frame: FrameType | None, outer: CallerLines | None
    ) -> tuple[tuple[SourcePlace, ...], SourcePlace | None]:
        found: list[SourcePlace] = []
        other: SourcePlace | None = None
        known = self._known
        while frame is not None and len(found) < _MAX_LINES:
            if outer is not None and frame is outer.frame:
                return (*found, *outer.found)[:_MAX_LINES], other or outer.other
            key = id(frame.f_code), frame.f_lasti
            at = known.get(key) or known.setdefault(key, self._frame_line(frame))
            if at.rank:
                if at.rank == _ENTERS:
                    break
                if at.rank == 2:
                    found.append(at.place)
                other = other or at.place
            frame = frame.f_back
        return tuple(found), other

    def _frame_line(self, frame: FrameType) -> _FrameLine:
        """Returns the line that `frame` is at."""
        code = frame.f_code
        rank = _ENTERS if code.co_filename == _ENTRY else self._rank(code.co_filename)
        place = code.co_filename, frame.f_lineno, code.co_qualname
        return _FrameLine(rank, place, code)

    def forward_of(self, one: type) -> SourcePlace:
        """Returns where the forward of a class of modules begins."""
        if one not in self._forwards:
            code = getattr(getattr(one, "forward", None), "__code__", None)
            name = f"{one.__qualname__}.forward"
            filename, line = (code.co_filename, code.co_firstlineno) if code else (_file_of(one), 0)
            self._forwards[one] = filename, line, name
        return self._forwards[one]

    def raised_at(self, error: BaseException) -> SourcePlace | None:
        """Returns the innermost line of the model's packages in the traceback of `error`."""
        found, traceback = None, error.__traceback__
        while traceback is not None:
            code = traceback.tb_frame.f_code
            if self._rank(code.co_filename) == 2:
                found = code.co_filename, traceback.tb_lineno, code.co_qualname
            traceback = traceback.tb_next
        return found

    def add_cache_of(self, output: Any) -> None:
        """Counts the files of the cache classes in a model's `output` as the model's own."""
        self.files |= set(_files_of_objects(output))

    def _rank(self, filename: str) -> int:
        if filename not in self._ranks:
            own = filename in self._adapters
            self._ranks[filename] = 2 if own else _rank_of(filename, self._roots)
        return self._ranks[filename]


def choose_line(
    places: Sequence[SourcePlace], files: Iterable[str], in_helper: bool
) -> Line | None:
    """Returns the line to name, of `places` (innermost first): the innermost in the model's own
    `files`, or with `in_helper` the innermost of all. None without any places."""
    own = [place for place in places if place[0].startswith(tuple(files))]
    chosen = places if in_helper or not own else own
    return line_at(chosen[0]) if chosen else None


def forward_line(places: Iterable[SourcePlace]) -> Line | None:
    """Returns the line of a module's forward among `places`."""
    found = next((place for place in places if place[2].endswith(".forward")), None)
    return line_at(found) if found else None


def line_at(place: SourcePlace) -> Line:
    """Returns the line of source at `place`, with its text."""
    filename, number, function = place
    text = linecache.getline(filename, number).strip()
    return Line(short_path(filename), number, text, function)


def line_of_function(function: Any) -> Line | None:
    """Returns the first line of a function or method; None if its source is not known, or is
    kvfuzz's own."""
    code = getattr(inspect.unwrap(function), "__code__", None) if callable(function) else None
    if code is None or _is_skipped(code.co_filename):
        return None
    return line_at((code.co_filename, code.co_firstlineno, code.co_qualname))


def _classes(subject: Any, model: Any) -> set[type]:
    """Returns the classes of the subject and of its model's modules."""
    classes = {type(subject), type(model)}
    if isinstance(model, nn.Module):
        classes |= {type(module) for module in model.modules()}
    return classes


def _adapters(subject: Any, classes: set[type]) -> frozenset[str]:
    """Returns the files in kvfuzz's own folder of a subject that computes without other code: as
    those of a model they may be named, and the rest of kvfuzz may not."""
    inner = unwrapped(subject)
    named = {_file_of(one) for one in (type(inner), *classes) if one not in WRAPPERS}
    return frozenset(name for name in named if name.startswith(str(_KVFUZZ)))


def _own_files(subject: Any, model: Any) -> set[str]:
    """Returns the folder of the model's class and the files of its modules that have children:
    anything else that these call is a helper."""
    if not isinstance(model, nn.Module) or _is_skipped(_file_of(type(model))):
        return {_file_of(type(subject))}
    outer = {type(module) for module in model.modules() if next(module.children(), None)}
    files = {_file_of(one) for one in outer if not _is_skipped(_file_of(one))}
    return files | {str(Path(_file_of(type(model))).parent) + "/"}


def _files_of_objects(output: Any) -> Iterator[str]:
    """Yields the files of the classes in a model's output that are not tensors: its cache."""
    values = output.values() if isinstance(output, Mapping) else output
    if isinstance(values, Tensor | str) or not isinstance(values, Iterable):
        return
    for value in values:
        if not isinstance(value, Tensor | Mapping | tuple | list | str | int | float | None):
            filename = _file_of(type(value))
            if filename and not _is_skipped(filename):
                yield filename


def _rank_of(filename: str, roots: Sequence[str]) -> int:
    """Returns 2 for the model's code, 1 for other code that may be named, 0 for code that may
    not."""
    if _is_skipped(filename):
        return 0
    if any(filename == root or filename.startswith(root + "/") for root in roots):
        return 2
    in_stdlib = filename.startswith(_STDLIB) and "site-packages" not in filename
    return 0 if in_stdlib else 1


def _is_skipped(filename: str) -> bool:
    return filename.startswith(_SKIPPED) and not filename.startswith(_OWN_MODELS)


@functools.lru_cache(maxsize=1024)
def _package_root(filename: str) -> str:
    """Returns the top folder of the package that holds `filename`, or the file itself outside
    packages."""
    root = Path(filename).parent
    if not (root / "__init__.py").exists():
        return filename
    while (root.parent / "__init__.py").exists():
        root = root.parent
    return str(root)


def _file_of(one: type) -> str:
    module = sys.modules.get(one.__module__)
    return getattr(module, "__file__", None) or ""
