"""Finds the entry points that installed packages offer.

`importlib.metadata` does the same, but importing it (with email, csv and zipfile) takes as long as
everything else that `kvfuzz --help` does.
"""

from __future__ import annotations

import functools
import importlib
import os
import sys
from collections.abc import Iterator
from typing import Any


def entry_points(group: str) -> dict[str, str]:
    """Returns the entry points of `group`, name to `module:attribute`. Of two packages with the
    same name, the first on `sys.path` counts."""
    if any(map(os.path.isfile, sys.path)):
        from importlib import metadata  # which reads packages inside a zip file, too

        return {entry.name: entry.value for entry in metadata.entry_points(group=group)}
    found: dict[str, str] = {}
    seen: set[str] = set()
    for package, text in _declarations():
        if package not in seen:
            seen.add(package)
            found.update(_in_group(text, group))
    return found


def _declarations() -> Iterator[tuple[str, str]]:
    """Yields each installed package that has entry points, and its file of them."""
    for folder in dict.fromkeys(sys.path):
        try:
            names = os.listdir(folder or ".")
        except OSError:
            continue
        for name in names:
            stem, _, ending = name.rpartition(".")
            if ending not in ("dist-info", "egg-info"):
                continue
            path = os.path.join(folder, name, "entry_points.txt")
            try:
                with open(path, encoding="utf-8") as stream:
                    yield _normalized(stem), stream.read()
            except OSError:
                continue


def _normalized(stem: str) -> str:
    """Returns the name in `Name-version`, in the one spelling that stands for all."""
    return stem.partition("-")[0].lower().replace(".", "_")


def _in_group(text: str, group: str) -> Iterator[tuple[str, str]]:
    """Yields the lines `name = value` below `[group]`."""
    inside = False
    for line in map(str.strip, text.splitlines()):
        if line.startswith("["):
            inside = line == f"[{group}]"
        elif inside and line and not line.startswith("#"):
            name, _, value = line.partition("=")
            yield name.strip(), value.partition("[")[0].strip()


def load(value: str) -> Any:
    """Returns the attribute that `module:attribute` names."""
    module, _, attribute = value.partition(":")
    return functools.reduce(getattr, attribute.split("."), importlib.import_module(module))
