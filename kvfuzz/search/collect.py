"""Deduplicates the counterexamples of several hunts.

Shards find the same fault under different seeds, with other tokens and weights, but shrink it to
the same program.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kvfuzz.case.counterexample import Counterexample, files_in, read
from kvfuzz.errors import InvalidCounterexample

Program = tuple[str, str, str, str, int, tuple[str, ...]]
"""Subject, law, first site, schedule as JSON, number of rows, optional arguments of calls."""


@dataclass(frozen=True)
class Collected:
    """A counterexample, the `files` that hold one of the same program, and the `path` that it was
    written to."""

    found: Counterexample
    files: tuple[Path, ...]
    path: Path

    @property
    def law(self) -> str:
        return str(self.found.verdict.get("law", "agreement"))

    @property
    def site(self) -> str | None:
        """The first site that differs, if it was located."""
        site = (self.found.located or {}).get("site")
        return None if site is None else str(site)

    def to_json(self) -> dict[str, Any]:
        return {
            "path": str(self.path),
            "subject": self.found.subject,
            "law": self.law,
            "site": self.site,
            "case": self.found.case.to_json(),
            "files": [str(file) for file in self.files],
        }


def collect(paths: Sequence[Path], folder: Path) -> tuple[list[Collected], list[str]]:
    """Writes the shortest counterexample of each program in `paths` (files, or folders, searched
    recursively) to `folder`. Returns them, those with the most files first, and an error line for
    each file that cannot be read.

    Two counterexamples have the same program if they differ at most in tokens, weights and
    settings. Raises UsageError for a path that does not exist, or if `folder` cannot be written.
    """
    alike: defaultdict[Program, list[tuple[int, Path, Counterexample]]] = defaultdict(list)
    unread = []
    for path in files_in(paths, recursive=True):
        try:
            found = read(path)
        except InvalidCounterexample as error:
            unread.append(str(error))
        else:
            alike[program_of(found)].append((len(str(found.case.to_json())), path, found))
    collected = []
    for same in alike.values():
        _, _, simplest = min(same, key=lambda each: each[:2])
        files = tuple(sorted(path for _, path, _ in same))
        collected.append(Collected(simplest, files, simplest.save(folder)))
    return sorted(collected, key=lambda each: (-len(each.files), str(each.path))), unread


def program_of(found: Counterexample) -> Program:
    """Returns what counterexamples of the same fault have in common."""
    case = found.case
    return (
        found.subject,
        str(found.verdict.get("law", "agreement")),
        str((found.located or {}).get("site")),
        json.dumps(case.to_json()["schedule"]),
        case.batch,
        case.given,
    )
