"""The entries of a schedule: calls that feed tokens, and operations on caches.

A plain number feeds that many tokens to every row; any other entry is one of the operations below.
In JSON an operation is a list that begins with its word: `["crop", 2]`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import astuple, dataclass, fields
from typing import Any, ClassVar

from kvfuzz.errors import InvalidCase

SIDES = ("left", "right")


@dataclass(frozen=True, slots=True)
class Padded:
    """Feeds `size` columns. Row i gets `size - pads[i]` tokens of text, and padding on one `side`.
    The padding tokens are drawn like any other, so that a leak shows."""

    word: ClassVar[str] = "padded"
    size: int
    side: str
    pads: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Ragged:
    """Feeds the first `lengths[r]` tokens of row r in one call; what fills the other columns up is
    drawn like any token, so that a leak shows. Afterwards each row continues at its own length."""

    word: ClassVar[str] = "ragged"
    lengths: tuple[int, ...]

    @property
    def size(self) -> int:
        """The number of columns: the tokens of the longest row."""
        return max(self.lengths, default=0)


@dataclass(frozen=True, slots=True)
class Tree:
    """Feeds a tree of candidates in one call, and keeps one branch of it in each row.

    Candidate i follows candidate `parents[i]`, which is an earlier one, or for -1 the last token of
    the row. Row r keeps the candidates from the root to number `kept[r]`, or none for -1.
    """

    word: ClassVar[str] = "tree"
    parents: tuple[int, ...]
    kept: tuple[int, ...]

    @property
    def size(self) -> int:
        """The number of candidates."""
        return len(self.parents)

    def branch(self, candidate: int) -> tuple[int, ...]:
        """Returns the candidates from the root to `candidate`; none for -1."""
        found: list[int] = []
        while candidate >= 0:
            found.append(candidate)
            candidate = self.parents[candidate]
        return tuple(reversed(found))


@dataclass(frozen=True, slots=True)
class Crop:
    """Drops the last `count` slots of every row, or all if there are fewer."""

    word: ClassVar[str] = "crop"
    count: int


@dataclass(frozen=True, slots=True)
class Rollback:
    """Drops the last `counts[r]` tokens of row r, or all if it has fewer. Afterwards the rows
    differ in length, and each continues at its own."""

    word: ClassVar[str] = "rollback"
    counts: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Reorder:
    """Makes the old row `rows[i]` the new row i of the cache: a permutation, a selection or a
    repetition."""

    word: ClassVar[str] = "reorder"
    rows: tuple[int, ...]

    def kind(self, of: int) -> str:
        """Names the kind for a cache `of` so many rows: `repeat` if a row comes twice, `select` if
        one is left out, else `reorder`."""
        if len(set(self.rows)) < len(self.rows):
            return "repeat"
        return "select" if len(self.rows) < of else "reorder"


@dataclass(frozen=True, slots=True)
class Fork:
    """Copies the current cache and continues on the copy, which is the newest cache."""

    word: ClassVar[str] = "fork"


@dataclass(frozen=True, slots=True)
class Restore:
    """Saves the current cache, and continues on what `load` makes of that."""

    word: ClassVar[str] = "restore"


@dataclass(frozen=True, slots=True)
class Reset:
    """Empties the current cache and continues on it."""

    word: ClassVar[str] = "reset"


@dataclass(frozen=True, slots=True)
class New:
    """Begins another cache of `rows` rows on the same subject, and continues on it. As the first
    entry of a schedule it sets the number of rows of the first cache."""

    word: ClassVar[str] = "new"
    rows: int


@dataclass(frozen=True, slots=True)
class Switch:
    """Continues on cache number `cache`; caches count from 0 in the order they were made."""

    word: ClassVar[str] = "switch"
    cache: int


@dataclass(frozen=True, slots=True)
class Join:
    """Adds the rows of cache number `cache` after those of the current cache. That ends the other
    cache. Rows of different length continue each at its own."""

    word: ClassVar[str] = "join"
    cache: int


Operation = (
    Padded
    | Ragged
    | Tree
    | Crop
    | Rollback
    | Reorder
    | Fork
    | Restore
    | Reset
    | New
    | Switch
    | Join
)
FEEDING = Padded | Ragged | Tree
"""The operations that feed tokens."""
Entry = int | Operation
OPERATIONS = {
    each.word: each
    for each in (
        *(Padded, Ragged, Tree, Crop, Rollback, Reorder),
        *(Fork, Restore, Reset, New, Switch, Join),
    )
}


def columns_of(entry: Entry) -> int | None:
    """Returns how many columns of tokens `entry` feeds; None for an operation that feeds none."""
    if isinstance(entry, FEEDING):
        return entry.size
    return entry if type(entry) is int else None


def entry_to_json(entry: Entry) -> Any:
    """Returns a number as it is, an operation as a list."""
    if isinstance(entry, int):
        return entry
    values = (list(v) if isinstance(v, tuple) else v for v in astuple(entry))
    return [entry.word, *values]


def entry_from_json(data: Any) -> Entry:
    """Reads what `entry_to_json` wrote. Raises InvalidCase, which names the wrong value."""
    if isinstance(data, int) and not isinstance(data, bool):
        return data
    if not isinstance(data, list) or not data or data[0] not in OPERATIONS:
        words = ", ".join(OPERATIONS)
        raise InvalidCase(
            f"'schedule' should hold integers, or lists that begin with {words}, got {data!r}"
        )
    kind: Any = OPERATIONS[data[0]]
    values = [tuple(v) if isinstance(v, list) else v for v in data[1:]]
    try:
        entry: Operation = kind(*values)
    except TypeError:
        names = ", ".join(each.name for each in fields(kind)) or "nothing"
        raise InvalidCase(f"{data[0]!r} in 'schedule' takes {names}, got {data[1:]!r}") from None
    _check_types(entry)
    return entry


def entry_text(entry: Entry) -> str:
    """Writes an entry for a reader: `3`, `crop 2`, `4 padded left [0, 2]`."""
    match entry:
        case int():
            return str(entry)
        case Padded(size, side, pads):
            return f"{size} padded {side} {list(pads)}"
        case Ragged(lengths):
            return f"ragged {list(lengths)}"
        case Tree(parents, kept):
            return f"tree {list(parents)} keeping {list(kept)}"
        case Crop(count):
            return f"crop {count}"
        case Rollback(counts):
            return f"rollback {list(counts)}"
        case Reorder(rows):
            return f"{entry.kind(max(rows) + 1)} {list(rows)}"
        case New(rows):
            return f"new of {rows}"
        case Switch(cache) | Join(cache):
            return f"{entry.word} {cache}"
        case _:
            return entry.word


def schedule_text(schedule: Sequence[Entry]) -> str:
    """Writes a schedule for a reader: `[3, crop 2, 1]`."""
    return f"[{', '.join(map(entry_text, schedule))}]"


def _check_types(entry: Operation) -> None:
    """Raises InvalidCase for a field of the wrong type."""
    wanted: dict[str, type] = dict.fromkeys(
        ("pads", "lengths", "parents", "kept", "counts", "rows"), tuple
    )
    wanted["side"] = str
    if isinstance(entry, New):
        wanted = {}
    for name in (each.name for each in fields(entry)):
        value = getattr(entry, name)
        kind = wanted.get(name, int)
        members = value if kind is tuple and isinstance(value, tuple) else ()
        if type(value) is not kind or any(type(member) is not int for member in members):
            what = {tuple: "a list of integers", str: "a word", int: "an integer"}[kind]
            raise InvalidCase(f"{name} of {entry.word!r} should be {what}, got {value!r}")
