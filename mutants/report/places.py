"""Where the source of a fault is, in lines and columns as editors count them."""

from __future__ import annotations

import functools
import inspect
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mutants.library.registry import known


@dataclass(frozen=True)
class Place:
    """The lines of a fault's function in `file`, whose whole text is `source`. Lines and columns
    count from 1, and the end is exclusive: `stop_column` is one past the last character of
    `stop_line`. `here` says whether the file is below the current folder: then `file` is relative
    to it, else to the folder that its package was imported from."""

    file: str
    source: str
    start_line: int
    start_column: int
    stop_line: int
    stop_column: int
    here: bool


def place_of(mutant_id: str) -> Place:
    """Returns where the fault of this id is. For one that is gone from the library or has no source
    (compiled, or typed in), returns a file of one line that says so."""
    mutant = known(mutant_id)
    if mutant is None:
        return _nowhere(mutant_id.partition(".")[0])
    fault: Any = inspect.unwrap(mutant.fault)
    while isinstance(fault, functools.partial):
        fault = fault.func
    try:
        path = Path(inspect.getsourcefile(fault) or "").resolve()
        text = path.read_text(encoding="utf-8")
        lines, start = inspect.getsourcelines(fault)
    except (OSError, TypeError, UnicodeDecodeError):
        return _nowhere(mutant.operator)
    return _at(path, text, lines, start, str(fault.__module__))


def _at(path: Path, text: str, lines: list[str], start: int, module: str) -> Place:
    first, last = lines[0], lines[-1].rstrip("\r\n")
    here = path.is_relative_to(Path.cwd())
    parts = len(module.split(".")) + (path.stem == "__init__")
    file = path.relative_to(Path.cwd()) if here else Path(*path.parts[-parts:])
    return Place(
        file=file.as_posix(),
        source=text,
        start_line=start,
        start_column=len(first) - len(first.lstrip()) + 1,
        stop_line=start + len(lines) - 1,
        stop_column=len(last) + 1,
        here=here,
    )


def _nowhere(operator: str) -> Place:
    source = "(source not available)"
    return Place(f"{operator}.txt", source, 1, 1, 1, len(source) + 1, here=False)
