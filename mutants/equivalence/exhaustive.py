"""Confirms that a mutant that is declared equivalent is: it runs every short program of a tiny
decoder.

A program is up to LONGEST moves on at most COLUMNS tokens a row, in float64. It begins and ends
with a call, and its rows hold every string over a vocabulary of two. `equivalents.json` notes what
agrees on all programs, with a digest of the code (`mutants.equivalence.code_digest`). A note
expires when that code or the programs change.

`python -m mutants.equivalence.exhaustive` writes the file. It runs the mutants whose notes expired,
a minute or so each.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import chain, product
from pathlib import Path
from typing import Any

from torch import Tensor

from kvfuzz.case.case import Case
from kvfuzz.case.layout import layout
from kvfuzz.case.schedule import (
    Crop,
    Entry,
    Fork,
    Padded,
    Reorder,
    Reset,
    Restore,
    Switch,
    columns_of,
    entry_text,
)
from kvfuzz.errors import InvalidCase
from kvfuzz.subjects.injection import Faulty
from kvfuzz.subjects.run import CachedPathRaised, Refused, run_cached
from kvfuzz.subjects.zoo.config import POSITIONS, DecoderConfig
from kvfuzz.subjects.zoo.decoder import Decoder
from mutants.equivalence.code_digest import code_digest
from mutants.library.registry import library
from mutants.mutant import Mutant

STORE = Path(__file__).with_name("equivalents.json")
TINY: dict[str, Any] = {"vocab_size": 2, "max_length": 12}
LONGEST = 4
COLUMNS = 5
ROUNDING = 1e-10
"""Largest difference of two logits that counts as rounding; float64 rounds far below it."""

Move = tuple[Entry, ...]
Settings = tuple[tuple[str, Any], ...]
CALLS: tuple[Move, ...] = ((1,), (2,), (Padded(2, "left", (0, 1)),))
"""The moves that feed tokens. They are written for two rows and repeated for each two of more."""
MOVES: tuple[Move, ...] = (
    *CALLS,
    (Crop(1),),
    (Reorder((1, 0)),),
    (Reorder((1, 1)),),
    (Fork(),),
    (Fork(), 1, Switch(0)),
    (Restore(),),
    (Reset(),),
)


@dataclass(frozen=True)
class ShortProgram:
    """A case, and a mask of the cells of its token table [rows, columns] that are text."""

    case: Case
    text: Tensor


@dataclass(frozen=True)
class Confirmation:
    """The number of programs on which an equivalent mutant agreed, and the digest of its code."""

    programs: int
    digest: str


class Refuted(Exception):
    """A program distinguishes the mutant from the real decoder, or none runs the mutant."""


def why_unconfirmed(mutant: Mutant) -> str | None:
    """Returns why `mutant`, which is declared equivalent, does not count as equivalent; None if a
    note confirms its present code."""
    note = load_notes().get(mutant.id)
    again = "run python -m mutants.equivalence.exhaustive"
    changed = "its code or the code that it replaces changed since it was checked"
    if note is None:
        return f"declared equivalent, and never checked: {again}"
    if note.digest != digest(mutant):
        return f"declared equivalent, but {changed}: {again}"
    return None


@functools.cache
def load_notes() -> Mapping[str, Confirmation]:
    """Returns the confirmations in the file, by mutant id."""
    return {name: Confirmation(**note) for name, note in json.loads(STORE.read_text()).items()}


def digest(mutant: Mutant) -> str:
    """A digest of the code of `mutant`, of the code that it replaces, and of the programs."""
    programs = (*map(entry_text, chain(*MOVES)), LONGEST, COLUMNS, ROUNDING, repr(TINY))
    return code_digest(mutant, programs)


def confirm(mutant: Mutant, longest: int = LONGEST) -> Confirmation:
    """Runs `mutant` on every program of up to `longest` moves, with each of its settings.

    Raises Refuted, with the program, if one distinguishes it from the real decoder.
    """
    agreed = reached = 0
    for settings in all_settings(mutant):
        faulty = mutant.into(_decoder(settings), "float64")
        for program, expected in zip(all_programs(longest), _clean(settings, longest), strict=True):
            if expected is not None:
                _require_same(faulty, program, expected, settings)
                agreed += 1
        reached += faulty.reached
    if not reached:
        raise Refuted(f"{mutant.id}: no program runs the code that it replaces")
    return Confirmation(agreed, digest(mutant))


def all_settings(mutant: Mutant) -> Iterator[Settings]:
    """Yields every combination of the settings that `mutant` needs, with each kind of positions."""
    choices = {"positions": POSITIONS, **mutant.needs}
    for values in product(*choices.values()):
        yield tuple(zip(choices, values, strict=True))


@functools.cache
def all_programs(longest: int) -> tuple[ShortProgram, ...]:
    """Returns every valid program of up to `longest` moves, on all token strings."""
    found = [p for call in CALLS for p in _program(call)]
    for count in range(longest - 1):
        for moves in product(CALLS, *[MOVES] * count, CALLS):
            found += _program(tuple(entry for move in moves for entry in move))
    return tuple(found)


def _program(entries: tuple[Entry, ...]) -> Iterator[ShortProgram]:
    """Yields the program of `entries`, if it is valid and has at most COLUMNS columns."""
    columns = sum(columns_of(entry) or 0 for entry in entries)
    if columns > COLUMNS:
        return
    padded = any(isinstance(entry, Padded) for entry in entries)
    # Each string comes twice where every other row is padded.
    strings = [s for s in product((0, 1), repeat=columns) for _ in range(2 if padded else 1)]
    wide = tuple(_widen(entry, len(strings)) for entry in entries)
    try:
        case = Case(tuple(strings), wide, dtype="float64", given=("mask",) if padded else ())
    except InvalidCase:
        return
    yield ShortProgram(case, layout(case).fed)


def _widen(entry: Entry, rows: int) -> Entry:
    """Returns `entry`, which is for two rows, repeated for each two of `rows` rows."""
    if isinstance(entry, Padded):
        return Padded(entry.size, entry.side, entry.pads * (rows // 2))
    if isinstance(entry, Reorder):
        return Reorder(tuple(2 * pair + row for pair in range(rows // 2) for row in entry.rows))
    return entry


def _decoder(settings: Settings) -> Decoder:
    return Decoder(DecoderConfig(**TINY, **dict(settings)), dtype="float64")


@functools.cache
def _clean(settings: Settings, longest: int) -> tuple[Tensor | None, ...]:
    """Returns the logits of each program on the real decoder; None where it refuses an
    operation."""
    decoder, found = _decoder(settings), list[Tensor | None]()
    for program in all_programs(longest):
        try:
            found.append(run_cached(decoder, program.case))
        except Refused:
            found.append(None)
    return tuple(found)


def _require_same(
    faulty: Faulty, program: ShortProgram, expected: Tensor, settings: Settings
) -> None:
    """Raise Refuted unless `faulty` gives what is `expected` on `program`."""
    told = f"{[entry_text(entry) for entry in program.case.schedule]} with {dict(settings)}"
    try:
        found = run_cached(faulty, program.case)
    except (CachedPathRaised, Refused) as error:
        raise Refuted(f"{told}: {error}") from error
    difference = (found - expected)[program.text].abs().max().item()
    if not difference <= ROUNDING:
        raise Refuted(f"{told}: a logit differs by {difference:.3g}")


def declared_equivalents() -> list[Mutant]:
    """Returns the mutants of the built-in decoder that are declared equivalent."""
    return [m for m in library().values() if m.equivalent is not None and m.subject == "zoo"]


def _line(mutant: Mutant) -> str:
    """The line of `mutant` in the file; a note that still holds is kept. Raises Refuted."""
    note = load_notes().get(mutant.id)
    if note is None or note.digest != digest(mutant):
        print(f"running every program on {mutant.id}", flush=True)
        note = confirm(mutant)
    return f"{json.dumps(mutant.id)}: {json.dumps(vars(note))}"


if __name__ == "__main__":
    lines = ",\n".join(map(_line, declared_equivalents()))
    STORE.write_text(f"{{\n{lines}\n}}\n", encoding="utf-8")
