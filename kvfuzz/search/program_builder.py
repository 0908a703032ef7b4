"""Builds a program: turns moves into entries of a schedule, those that are possible."""

from __future__ import annotations

from dataclasses import dataclass, field

from kvfuzz.case.schedule import (
    SIDES,
    Crop,
    Entry,
    Fork,
    Join,
    New,
    Padded,
    Ragged,
    Reorder,
    Reset,
    Restore,
    Rollback,
    Switch,
    Tree,
    columns_of,
)
from kvfuzz.subjects.call_limits import ANY_CALL, CallLimits

MOST_CACHES = 3
SMALL = 4
ROWS = ("reorder", "select", "repeat")
"""Moves that become a Reorder."""
OVER, ALL = 1000, 999
"""Counts of a crop that stand for one token more than are stored, and for all of them."""

Move = tuple[str, int, tuple[int, ...]]
"""A word, a count, and a number for each row. `left` and `right` feed with padding; `guests` begins
a new cache of rows for which the current one has room, so that they can join it; `hit` continues on
a copy of the first tokens of the current cache."""


@dataclass(frozen=True)
class Bounds:
    """The bounds of every program: up to `max_length` columns, what the subject `offers`, and the
    `calls` that it takes."""

    max_length: int
    offers: frozenset[str] = frozenset()
    calls: CallLimits = ANY_CALL


@dataclass
class ProgramBuilder:
    """A program as far as it is fitted: the tokens of each row of its `caches` (none in one that a
    join has ended), one of them `current`, and the number of columns `used`. `uneven` are the
    caches whose rows have lengths of their own. That and padding exclude each other: `kind` is
    "uneven" or "padding", by what came first."""

    rows: int
    bounds: Bounds
    caches: list[list[int]]
    entries: list[Entry] = field(default_factory=list)
    current: int = 0
    used: int = 0
    uneven: set[int] = field(default_factory=set)
    kind: str = ""

    def schedule(self) -> tuple[Entry, ...]:
        """Returns the entries up to the last one that feeds: later ones have no effect."""
        feeding = [n for n, entry in enumerate(self.entries) if columns_of(entry) is not None]
        last = feeding[-1] if feeding else -1
        return tuple(self.entries[: last + 1])

    def add(self, word: str, count: int, each: tuple[int, ...]) -> None:
        """Adds a move, if it is possible at this place."""
        slots = max(self.caches[self.current])
        if word == Ragged.word:
            self._feed_ragged(count, each)
        elif word == Tree.word:
            self._feed_tree(count, each)
        elif word in ("feed", *SIDES):
            self._feed(word, count, each)
        elif word in ("new", "guests"):
            most = self.rows - (len(self.caches[self.current]) if word == "guests" else 0)
            if slots and most and self._has_room():
                self.caches.append([0] * (min(max(1, count), most) if count else most))
                self.current = len(self.caches) - 1
                self.entries.append(New(len(self.caches[-1])))
        elif word == "switch":
            wanted = count % len(self.caches)
            if wanted != self.current and self.caches[wanted]:
                self.current = wanted
                self.entries.append(Switch(self.current))
        elif slots and word == "join":
            self._join(count)
        elif slots and word == "crop":
            self._crop(count)
        elif slots and word == "hit":
            if slots > 1 and self._has_room():
                self._operate("fork", count, each)
                self._crop(count)
        elif slots:
            self._operate(word, count, each)

    def _has_room(self) -> bool:
        """Whether there may be one cache more."""
        return sum(map(bool, self.caches)) < MOST_CACHES

    def _join(self, count: int) -> None:
        """Joins another cache that holds something, number `count` of them, if the rows of both fit
        into the table."""
        own = self.caches[self.current]
        others = [
            number
            for number, cache in enumerate(self.caches)
            if number != self.current and any(cache) and len(cache) + len(own) <= self.rows
        ]
        if self.kind == "padding" or not others:
            return
        number = others[count % len(others)]
        self.kind = "uneven"
        if number in self.uneven or len({*own, *self.caches[number]}) > 1:
            self.uneven.add(self.current)
        self.entries.append(Join(number))
        self.caches[self.current] = [*own, *self.caches[number]]
        self.caches[number] = []

    def _rows(self, word: str, count: int, each: tuple[int, ...]) -> tuple[int, ...]:
        """Returns the rows that the current cache is reordered to: rotated by `count`, all but one,
        or `count` rows of which two are the same."""
        batch = len(self.caches[self.current])
        if word == "reorder":
            return tuple((row + count) % batch for row in range(batch))
        if word == "select":
            return tuple(row for row in range(batch) if row != each[0] % batch) or (0,)
        rows = tuple(n % batch for n in each[: min(max(2, count), self.rows)])
        return rows if len(set(rows)) < len(rows) else (*rows[:-1], rows[0])

    def _feed(self, word: str, count: int, each: tuple[int, ...]) -> None:
        cache = self.caches[self.current]
        batch = len(cache)
        whole, size, *rest = self._pieces(count)
        if not whole:
            return
        takes_padding = self.kind != "uneven"
        if not self.bounds.calls.padding_between:
            word, takes_padding = "left", takes_padding and not max(cache)
        # Shrinking moves nonzero numbers to the end of a list before it removes rows, so the last
        # ones are used. At least one row is padded.
        pads = tuple(n % size for n in each[-batch:]) if takes_padding else ()
        if pads and size > 1 and not any(pads):
            pads = (*pads[:-1], 1)
        if any(pads):
            self.kind = "padding"
        self.entries += [Padded(size, word, pads) if any(pads) else size, *rest]
        self.caches[self.current] = [length + whole for length in cache]
        self.used += whole

    def _pieces(self, count: int) -> tuple[int, ...]:
        """Returns how many of `count` columns can be fed, and the sizes of the calls that do."""
        whole = max(0, min(count, self.bounds.max_length - self.used))
        filled = max(self.caches[self.current]) > 0
        return whole, *(self.bounds.calls.pieces(whole, filled) or (0,))

    def _feed_ragged(self, count: int, each: tuple[int, ...]) -> None:
        """Feeds up to `count` columns, and fewer to each row but one by its number of `each`. At
        least one of several rows is short."""
        cache = self.caches[self.current]
        _, size, *_ = self._pieces(count)
        if self.kind == "padding" or not size or len(cache) == 1:
            return
        short = [n % (size + 1) for n in each[-len(cache) :]]
        short[short.index(min(short))] = 0
        if not any(short):
            short[-1] = 1
        lengths = tuple(size - n for n in short)
        self.kind = "uneven"
        self.uneven.add(self.current)
        self.entries.append(Ragged(lengths))
        self.caches[self.current] = [old + new for old, new in zip(cache, lengths, strict=True)]
        self.used += size

    def _feed_tree(self, count: int, each: tuple[int, ...]) -> None:
        """Feeds up to `count` candidates to a cache whose rows all hold something. The first of
        `each` give the parents, the last ones how far from the last candidate the one is that a
        row keeps."""
        cache = self.caches[self.current]
        _, size, *_ = self._pieces(count)
        if self.kind == "padding" or not size or not min(cache):
            return
        parents = tuple(number - each[number] % (number + 1) - 1 for number in range(size))
        kept = tuple(size - 1 - n % (size + 1) for n in each[-len(cache) :])
        tree = Tree(parents, kept)
        self.kind = "uneven"
        self.uneven.add(self.current)
        self.entries.append(tree)
        new = (len(tree.branch(candidate)) for candidate in kept)
        self.caches[self.current] = [old + more for old, more in zip(cache, new, strict=True)]
        self.used += size

    def _operate(self, word: str, count: int, each: tuple[int, ...]) -> None:
        cache = self.caches[self.current]
        if word == "rollback":
            if self.kind != "padding":
                self._roll_back(_uneven(each[-len(cache) :], count))
        elif word in ROWS:
            rows = self._rows(word, count, each)
            if rows != tuple(range(len(cache))):
                self.entries.append(Reorder(rows))
                self.caches[self.current] = [cache[row] for row in rows]
        elif word == "fork":
            if self._has_room():
                self.caches.append(list(cache))
                if self.current in self.uneven:
                    self.uneven.add(len(self.caches) - 1)
                self.current = len(self.caches) - 1
                self.entries.append(Fork())
        else:
            self.entries.append(Restore() if word == "restore" else Reset())
            if word == "reset":
                self.caches[self.current] = [0] * len(cache)
                self.uneven.discard(self.current)

    def _crop(self, count: int) -> None:
        """Drops `count` slots, if it is ALL or OVER. Other counts leave at least one token, and
        small counts at least half of them."""
        cache = self.caches[self.current]
        slots = max(cache)
        most = slots // 2 if count <= SMALL else slots - 1
        some = 1 + (count - 1) % max(1, most)
        count = {ALL: slots, OVER: slots + 1}.get(count, some)
        if self.current not in self.uneven:
            self.entries.append(Crop(count))
            self.caches[self.current] = [max(0, length - count) for length in cache]
        elif "rollback" in self.bounds.offers:
            self._roll_back((count,) * len(cache))

    def _roll_back(self, counts: tuple[int, ...]) -> None:
        """Rolls the rows of the current cache back by `counts`."""
        self.kind = "uneven"
        self.entries.append(Rollback(counts))
        left = zip(self.caches[self.current], counts, strict=True)
        self.caches[self.current] = [max(0, length - count) for length, count in left]
        self.uneven.add(self.current)
        if not any(self.caches[self.current]):
            self.uneven.discard(self.current)


def _uneven(counts: tuple[int, ...], scale: int) -> tuple[int, ...]:
    """Returns the counts of a rollback: not all the same, unless there is one row, and one above
    0."""
    if len(set(counts)) == 1:
        counts = (*(0,) * (len(counts) - 1), max(1, counts[-1]))
    return tuple(count * (1 + scale // SMALL) for count in counts)
