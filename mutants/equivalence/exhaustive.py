"""Equivalent mutants, checked: what declares that no case can kill it meets every short program of
a tiny decoder in float64.

A program is up to LONGEST moves, which begin and end with a call, on at most COLUMNS tokens a row;
its rows hold every string of them over a vocabulary of two. What agrees on all of these is noted in
`equivalents.json`, which `python -m mutants.equivalence.exhaustive` writes, beside a digest of the
fault's file, of the decoder and of this one: a note expires when one of them changes.
"""

from __future__ import annotations

import functools
import hashlib
import inspect
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

from torch import Tensor

import kvfuzz.subjects.zoo
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
    entry_text,
)
from kvfuzz.errors import InvalidCase
from kvfuzz.subjects.injection import Faulty
from kvfuzz.subjects.run import CachedPathRaised, Refused, run_cached
from kvfuzz.subjects.zoo.config import POSITIONS, DecoderConfig
from kvfuzz.subjects.zoo.decoder import Decoder
from mutants.library.registry import library
from mutants.mutant import Mutant

STORE = Path(__file__).with_name("equivalents.json")
TINY: dict[str, Any] = {"vocab_size": 2, "max_length": 12}
LONGEST = 4
COLUMNS = 5
ROUNDING = 1e-10
"""The largest difference of two logits that rounding makes in float64, by far; faults make more."""

Move = tuple[Entry, ...]
Settings = tuple[tuple[str, Any], ...]
CALLS: tuple[Move, ...] = ((1,), (2,), (Padded(2, "left", (0, 1)),))
"""The moves that feed. Rows are given for two of them; of more, each two are treated alike."""
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
class Program:
    """A case, and which cells of its token table [rows, columns] are text that it feeds."""

    case: Case
    text: Tensor


@dataclass(frozen=True)
class Confirmation:
    """Of an equivalent mutant: how many programs it agreed on, and the digest of what they ran."""

    programs: int
    digest: str


class Refuted(Exception):
    """A program tells the mutant from the unmutated decoder, or none runs it."""


def unconfirmed(mutant: Mutant) -> str | None:
    """Why the declaration of `mutant`, which says that it is equivalent, does not count; None if it
    was checked, and holds for what is there now."""
    note = stored().get(mutant.id)
    again = "run python -m mutants.equivalence.exhaustive"
    changed = "the fault or the decoder changed since it was checked"
    if note is None:
        return f"declared equivalent, and never checked: {again}"
    if note.digest != digest(mutant):
        return f"declared equivalent, but {changed}: {again}"
    return None


@functools.cache
def stored() -> Mapping[str, Confirmation]:
    """The confirmations in the file, by the mutant's id."""
    return {name: Confirmation(**note) for name, note in json.loads(STORE.read_text()).items()}


def digest(mutant: Mutant) -> str:
    """A digest of all that decides whether `mutant` is equivalent: its file, the decoder's files,
    and the programs."""
    zoo = Path(kvfuzz.subjects.zoo.__file__).parent
    files = [Path(inspect.getfile(mutant.fault)), *sorted(zoo.rglob("*.py")), Path(__file__)]
    told = (mutant.id, mutant.targets, dict(mutant.needs), *(file.read_bytes() for file in files))
    return hashlib.sha256(repr(told).encode()).hexdigest()


def confirmed(mutant: Mutant, longest: int = LONGEST) -> Confirmation:
    """`mutant` checked on every program of up to `longest` moves, with each of its settings.

    Raises Refuted, with the program, if one tells it from the real decoder.
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
    """Every combination of the settings that `mutant` needs, with each kind of positions."""
    choices = {"positions": POSITIONS, **mutant.needs}
    for values in product(*choices.values()):
        yield tuple(zip(choices, values, strict=True))


@functools.cache
def all_programs(longest: int) -> tuple[Program, ...]:
    """Every program of up to `longest` moves that makes sense, on all token strings."""
    found = [p for call in CALLS for p in _program(call)]
    for count in range(longest - 1):
        for moves in product(CALLS, *[MOVES] * count, CALLS):
            found += _program(tuple(entry for move in moves for entry in move))
    return tuple(found)


def _program(entries: tuple[Entry, ...]) -> Iterator[Program]:
    """The program of `entries`, if it has no more than COLUMNS columns and makes sense."""
    columns = sum(e if isinstance(e, int) else getattr(e, "size", 0) for e in entries)
    if columns > COLUMNS:
        return
    padded = any(isinstance(entry, Padded) for entry in entries)
    # Each string comes twice where every other row is padded.
    strings = [s for s in product((0, 1), repeat=columns) for _ in range(2 if padded else 1)]
    wide = tuple(_widened(entry, len(strings)) for entry in entries)
    try:
        case = Case(tuple(strings), wide, dtype="float64", given=("mask",) if padded else ())
    except InvalidCase:
        return
    yield Program(case, layout(case).fed)


def _widened(entry: Entry, rows: int) -> Entry:
    """`entry` for `rows` rows, of which each two are as it has two."""
    if isinstance(entry, Padded):
        return Padded(entry.size, entry.side, entry.pads * (rows // 2))
    if isinstance(entry, Reorder):
        return Reorder(tuple(2 * pair + row for pair in range(rows // 2) for row in entry.rows))
    return entry


def _decoder(settings: Settings) -> Decoder:
    return Decoder(DecoderConfig(**TINY, **dict(settings)), dtype="float64")


@functools.cache
def _clean(settings: Settings, longest: int) -> tuple[Tensor | None, ...]:
    """The logits of each program on the real decoder; None where it refuses an operation."""
    decoder, found = _decoder(settings), list[Tensor | None]()
    for program in all_programs(longest):
        try:
            found.append(run_cached(decoder, program.case))
        except Refused:
            found.append(None)
    return tuple(found)


def _require_same(faulty: Faulty, program: Program, expected: Tensor, settings: Settings) -> None:
    """Raise Refuted unless `faulty` gives what is `expected` on `program`."""
    told = f"{[entry_text(entry) for entry in program.case.schedule]} with {dict(settings)}"
    try:
        found = run_cached(faulty, program.case)
    except (CachedPathRaised, Refused) as error:
        raise Refuted(f"{told}: {error}") from error
    difference = (found - expected)[program.text].abs().max().item()
    if not difference <= ROUNDING:
        raise Refuted(f"{told}: a logit differs by {difference:.3g}")


def declared() -> list[Mutant]:
    """The mutants of the registered decoder that say that they are equivalent."""
    return [m for m in library().values() if m.equivalent is not None and m.subject == "zoo"]


def _text() -> str:
    """The file, a line for each mutant. Raises Refuted."""
    lines = [f"{json.dumps(m.id)}: {json.dumps(vars(confirmed(m)))}" for m in declared()]
    return "{\n" + ",\n".join(lines) + "\n}\n"


if __name__ == "__main__":
    STORE.write_text(_text(), encoding="utf-8")
