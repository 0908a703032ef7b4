"""Finds the lines that a fault reaches first, by running the copied code with the fault and
without.

Both copies run the same path of the same case. Their operations are compared one by one, as lines
and values, so no alignment of cached with uncached states comes into it, and nothing of kvfuzz's
own way of locating.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import dataclass
from difflib import SequenceMatcher
from pathlib import Path
from types import FrameType
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from kvfuzz.case.case import Case
from kvfuzz.case.layout import layout
from kvfuzz.subjects.protocol import Factory
from kvfuzz.subjects.run import run_cached, run_uncached
from kvfuzz.subjects.uninitialised import filling_uninitialised
from tests.quality.injected.copies import Copy, Place


@dataclass(frozen=True)
class Operation:
    """One operation of a run: the innermost line of the copy that asked for it, and its result.
    A view computes nothing."""

    place: Place
    name: str
    result: Tensor
    view: bool


class _Record(TorchFunctionMode):
    """Keeps the operations that the code in `folder` asks for."""

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self._folder = str(folder)
        self.operations: list[Operation] = []

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        place = self._place(sys._getframe(1))
        name = getattr(func, "__name__", "")
        own = args[0] if args else None
        computes = result is not own or _in_place(name)  # `to` may have nothing to do
        if place and name != "__get__" and computes:
            for tensor in _tensors(result):
                given = [t.untyped_storage().data_ptr() for t in _tensors((args, kwargs))]
                view = tensor.untyped_storage().data_ptr() in given and not _in_place(name)
                self.operations.append(Operation(place, name, tensor.detach().clone(), view))
        return result

    def _place(self, frame: FrameType | None) -> Place | None:
        while frame is not None:
            path = Path(frame.f_code.co_filename)
            if str(path.parent) == self._folder:
                return path.stem, frame.f_lineno
            frame = frame.f_back
        return None


def _in_place(name: str) -> bool:
    return name.startswith("__i") or (name.endswith("_") and not name.endswith("__"))


def _tensors(value: Any) -> Iterator[Tensor]:
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, list | tuple):
        for item in value:
            yield from _tensors(item)
    elif isinstance(value, dict):
        yield from _tensors(list(value.values()))


def operations(copy: Copy, factory: Factory, case: Case, path: str) -> list[Operation]:
    """Returns the operations of one path of `case`, in order."""
    subject = factory.subject(case)
    # Otherwise memory that nothing has written to holds something else in each run.
    with filling_uninitialised(), _Record(copy.folder) as record:
        if path == "cached":
            run_cached(subject, case)
        else:
            run_uncached(subject, layout(case).sequences)
    return record.operations


def reached(
    faulty: list[Operation], clean: list[Operation], other: list[Operation], lines: frozenset[Place]
) -> tuple[Place, ...]:
    """Returns the lines that a fault on `lines` reaches first, except its own: where a value of the
    `faulty` run first differs from the `clean` run of the same path, and where one first does on a
    line that the `other` path runs as well, since what a cache keeps has no counterpart without
    one. Of each, the first such line, and the first that is not a view."""
    differing = list(_differing(_besides(faulty, lines), _besides(clean, lines)))
    shared = {operation.place for operation in other}
    found: dict[Place, None] = {}
    for group in (differing, [operation for operation in differing if operation.place in shared]):
        computing = [operation for operation in group if not operation.view]
        found |= dict.fromkeys(operation.place for operation in (*group[:1], *computing[:1]))
    return tuple(found)


def first_changed(faulty: list[Operation], clean: list[Operation]) -> Iterator[Operation]:
    """Yields the operations of the `faulty` run that the `clean` run of the same path lacks or
    that have another value there, in order."""
    return _differing(faulty, clean)


def _besides(run: list[Operation], lines: frozenset[Place]) -> list[Operation]:
    return [operation for operation in run if operation.place not in lines]


def _differing(faulty: list[Operation], clean: list[Operation]) -> Iterator[Operation]:
    """Yields the operations of `faulty` that differ from those of `clean`."""
    keys = [[(operation.place, operation.name) for operation in run] for run in (clean, faulty)]
    for tag, start, stop, first, last in SequenceMatcher(None, *keys, autojunk=False).get_opcodes():
        if tag == "equal":
            pairs = zip(clean[start:stop], faulty[first:last], strict=True)
            yield from (new for old, new in pairs if not _is_same(old.result, new.result))
        else:
            yield from faulty[first:last]


def _is_same(one: Tensor, other: Tensor) -> bool:
    """Whether two results are equal. NaN, which unwritten memory holds, counts as itself."""
    if torch.equal(one, other):
        return True
    if one.shape != other.shape or one.dtype != other.dtype or not one.is_floating_point():
        return False
    return torch.equal(one.nan_to_num(nan=0.5), other.nan_to_num(nan=0.5)) and torch.equal(
        one.isnan(), other.isnan()
    )
