"""Small fixed programs that use all that a subject offers, to see what a generic mutant changes."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from contextlib import suppress
from dataclasses import replace
from typing import Any

from kvfuzz.case.case import Case
from kvfuzz.case.schedule import Crop, Entry, Fork, New, Padded, Reorder, Reset, Restore, Switch
from kvfuzz.errors import InvalidSubject
from kvfuzz.subjects.call_limits import call_limits_of, most_rows
from kvfuzz.subjects.run import CachedPathRaised, Refused, run_cached, seeded

ROWS = 3
PROGRAMS: tuple[tuple[str, tuple[Entry, ...]], ...] = (
    ("cached", (3, 2, 1, 1)),
    ("mask", (Padded(3, "left", (1, 0, 2)), 2, 1, 1)),
    ("crop", (4, Crop(2), 2, 1)),
    ("reorder", (3, Reorder((1, 2, 0)), 2, 1)),
    ("copy", (3, Fork(), 2, Switch(0), 2)),
    ("save", (3, Restore(), 2, 1)),
    ("reset", (3, Reset(), 2, 1)),
    ("cached", (3, New(ROWS), 2, 1)),
)
"""The offer that each program needs, and its schedule."""


def probes(subject: Any, like: Case, offers: Collection[str]) -> Iterator[Case]:
    """Yields the programs that `subject` can run, with the settings of the case `like`. Rows
    differ, and neighbouring tokens too."""
    given = tuple(word for word in ("mask", "positions") if word in offers)
    rows = most_rows(subject, ROWS)
    for needed, program in PROGRAMS:
        if needed not in {*offers, "cached"} or (needed in ("mask", "reorder") and rows < ROWS):
            continue
        schedule = tuple(New(rows) if isinstance(entry, New) else entry for entry in program)
        columns = sum(map(_columns, schedule))
        if subject.max_length is not None and columns > subject.max_length:
            continue
        tokens = tuple(
            tuple((1 + 7 * row + 3 * column) % subject.vocab_size for column in range(columns))
            for row in range(rows)
        )
        whole = replace(like, tokens=tokens, schedule=schedule, given=given, keep=None)
        if (case := call_limits_of(subject).fitted(whole)) is not None:
            yield case


def _columns(entry: Entry) -> int:
    """Returns how many columns of the token table `entry` takes."""
    if isinstance(entry, Padded):
        return entry.size
    return entry if isinstance(entry, int) else 0


def raises(subject: Any, case: Case) -> bool:
    """Whether the cached path of `subject` raises on `case`; refusing a step does not count."""
    with seeded(case.seed), suppress(Refused):
        try:
            run_cached(subject, case)
        except (CachedPathRaised, InvalidSubject):
            return True
    return False
