"""Programs: schedules of everything that can be done to a cache, drawn and shrunk as one value.

A program is drawn as a list of *moves*, that know nothing of each other, and then *fitted*: counts
become rows and lengths that exist, and what cannot be done where it stands is left out. So a move
can be deleted without breaking the others, and what is left is the story of the bug.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field

from hypothesis import strategies as st

from kvfuzz.case.case import GIVEN, Case
from kvfuzz.case.features import PADDED
from kvfuzz.case.schedule import (
    SIDES,
    Crop,
    Entry,
    Fork,
    New,
    Padded,
    Reorder,
    Reset,
    Restore,
    Switch,
)

MOST_MOVES = 8
MOST_CACHES = 3
LARGE, SMALL = 10, 4
# The moves that end in a Reorder.
ROWS = ("reorder", "select", "repeat")
# With so many slots the windows of small models are full, and their oldest entries gone.
LATE = 7
# Counts of a crop: one more than are stored, or all of them.
OVER, ALL = 1000, 999


@dataclass(frozen=True)
class Program:
    """A `schedule` for a table of `rows` rows (at the least), and the arguments that every call is
    `given`."""

    schedule: tuple[Entry, ...]
    rows: int
    given: tuple[str, ...] = ()

    @property
    def columns(self) -> int:
        """The length of the token table."""
        sizes = (e.size if isinstance(e, Padded) else e for e in self.schedule)
        return sum(size for size in sizes if isinstance(size, int))


_NONE: tuple[int, ...] = ()
Move = tuple[str, int, tuple[int, ...]]
"""A word of the schedule (`feed`, `left` and `right` feed), a count, and one more for each row."""


MIXED = "mixed"


def focuses(offers: frozenset[str]) -> tuple[str, ...]:
    """What a program may be about, with what a subject `offers`: padding on one side, one
    operation, or everything mixed."""
    if not offers:
        return ()
    padding = PADDED if "mask" in offers else ()
    return (*padding, *sorted(_words(offers)), MIXED)


def programs(
    focus: str, max_length: int, most_rows: int, offers: frozenset[str]
) -> st.SearchStrategy[Program]:
    """Programs about `focus`, of up to `max_length` columns and `most_rows` rows, of what a subject
    `offers`.

    What a program is about is in it for sure, which may be more than a bug needs: `simplify` of
    `kvfuzz.search.shrink` takes it out again.
    """
    feed, begin = (
        sizes.map(lambda size: ("feed", size, _NONE)) for sizes in (_sizes(1), _first(1))
    )
    each = st.lists(st.integers(0, SMALL), min_size=most_rows, max_size=most_rows).map(tuple)
    words = sorted(_words(offers)) if focus == MIXED else [focus]
    kinds = [_move(word, each) for word in words]
    padded = [_move(word, each) for word in PADDED if "mask" in offers]
    # Every other program begins with padding, which an operation then has to keep track of.
    # On the left more often: that of the right goes first where something is taken away.
    sides = ("left padding", *PADDED) if "mask" in offers else ()
    late = [_padding(word, _first(2), each) for word in sides]
    start = _either([begin, _either(late)]) if padded else begin
    if focus == MIXED:
        first = [start]
    elif focus == "switch":
        kinds += [_move(word, each) for word in sorted({"new", "fork"} & _words(offers))]
        first = [start, _either(kinds[1:]), feed, kinds[0]]
    else:
        # Nothing but padding can be done before a cache holds something.
        first = [kinds[0]] if focus in PADDED else [start, kinds[0]]
    if focus in ("new", "fork"):
        kinds.append(_move("switch", each))
    if focus == MIXED:
        kinds += padded
    if focus in PADDED:
        kinds.append(_either([_move(word, each) for word in sorted(_words(offers))]))
    kinds += [feed] * (1 + len(kinds) // 3)
    moves = st.tuples(
        st.tuples(*first), st.lists(_either(kinds), max_size=MOST_MOVES - len(first))
    ).map(lambda drawn: [*drawn[0], *drawn[1]])
    fewest = min(2, most_rows) if focus in ROWS else 1
    rows = st.integers(fewest, most_rows)
    begun = st.integers(0, most_rows - 1) if focus in (*ROWS, MIXED) else st.just(0)
    return st.tuples(rows, moves, st.sampled_from(_arguments(offers)), begun).map(
        lambda drawn: fitted(drawn[0], drawn[1], drawn[2], drawn[3], max_length, offers)
    )


def _either(moves: Sequence[st.SearchStrategy[Move]]) -> st.SearchStrategy[Move]:
    """One of `moves`, each as often as the others: `one_of` would count the branches of each."""
    return st.integers(0, len(moves) - 1).flatmap(lambda number: moves[number])


def _sizes(least: int) -> st.SearchStrategy[int]:
    """How many tokens a call feeds: often few, and often enough to fill a small window."""
    large = st.integers(least, LARGE)
    return st.one_of(st.just(least), st.integers(least, SMALL), large, large)


def _first(least: int) -> st.SearchStrategy[int]:
    """How many tokens the first call feeds: more often many, so that there is something to work
    on."""
    return st.one_of(_sizes(least), st.integers(LATE, LARGE))


def _padding(
    word: str, sizes: st.SearchStrategy[int], each: st.SearchStrategy[tuple[int, ...]]
) -> st.SearchStrategy[Move]:
    return st.tuples(st.just(word.partition(" ")[0]), sizes, each)


def _words(offers: frozenset[str]) -> set[str]:
    """The operations that can be drawn beside feeding. Two caches need no offer."""
    known = {"crop": "crop", "copy": "fork", "save": "restore", "reset": "reset"}
    rows = ROWS if "reorder" in offers else ()
    return {"new", "switch", *rows, *(word for offer, word in known.items() if offer in offers)}


def _move(word: str, each: st.SearchStrategy[tuple[int, ...]]) -> st.SearchStrategy[Move]:
    match word:
        case "left padding" | "right padding":
            return _padding(word, _sizes(2), each)
        case "crop":
            counts = st.one_of(
                st.integers(1, SMALL), st.integers(1, LARGE), st.sampled_from((ALL, OVER, OVER))
            )
            return counts.map(lambda count: (word, count, ()))
        case "reorder" | "select" | "repeat":
            return st.tuples(st.just(word), st.integers(1, SMALL), each)
        case "new" | "switch":
            return st.integers(0, SMALL - 1).map(lambda count: (word, count, ()))
        case _:
            return st.just((word, 0, ()))


def _arguments(offers: frozenset[str]) -> tuple[tuple[str, ...], ...]:
    """The sets of optional arguments that calls may be given; half of the programs have none."""
    known = [word for word in GIVEN if word in offers]
    none: tuple[tuple[str, ...], ...] = ((),) * max(1, len(known) + 1)
    return (*none, *((word,) for word in known), *((tuple(known),) if len(known) > 1 else ()))


def fitted(
    rows: int,
    moves: Sequence[Move],
    given: tuple[str, ...],
    begun: int,
    max_length: int,
    offers: frozenset[str] = frozenset(),
) -> Program:
    """The program that `moves` come to in a table of `rows` rows and up to `max_length` columns.
    `begun` rows are there at first, if that is fewer, and not none."""
    start = begun if 0 < begun < rows else rows
    fit = Fit(rows, max_length, [[start, 0]])
    if start < rows:
        fit.entries.append(New(start))
    for move in moves:
        fit.add(*move)
    if not fit.used or not isinstance(fit.entries[-1], int | Padded):
        fit.add("feed", 1, ())
    schedule = fit.schedule()
    if any(isinstance(entry, Padded) for entry in schedule):
        given = tuple(word for word in GIVEN if word in {*given, "mask", *_beside_padding(offers)})
    return Program(schedule, rows, given)


def has_required_args(case: Case, offers: Collection[str]) -> bool:
    """Whether a subject with these `offers` is given all that it needs where there is padding."""
    padded = any(isinstance(entry, Padded) for entry in case.schedule)
    return not padded or _beside_padding(offers) <= set(case.given)


def _beside_padding(offers: Collection[str]) -> set[str]:
    """What is always given where there is padding, beside the mask: the positions, to a subject
    that takes them and does not say that the mask is enough."""
    return {"positions"} & set(offers) if "positions_from_mask" not in offers else set()


@dataclass
class Fit:
    """What has been fitted so far: `caches` as [rows, slots], of which one is `current`."""

    rows: int
    max_length: int
    caches: list[list[int]]
    entries: list[Entry] = field(default_factory=list)
    current: int = 0
    used: int = 0

    def schedule(self) -> tuple[Entry, ...]:
        """The entries up to the last that feeds: nothing reads what comes after it."""
        last = max(
            (n for n, entry in enumerate(self.entries) if isinstance(entry, int | Padded)),
            default=-1,
        )
        return tuple(self.entries[: last + 1])

    def add(self, word: str, count: int, each: tuple[int, ...]) -> None:
        """Add a move, if it can be done here."""
        slots = self.caches[self.current][1]
        if word in ("feed", *SIDES):
            self._feed(word, count, each)
        elif word == "new":
            if slots and len(self.caches) < MOST_CACHES:
                self.caches.append([min(max(1, count), self.rows) if count else self.rows, 0])
                self.current = len(self.caches) - 1
                self.entries.append(New(self.caches[-1][0]))
        elif word == "switch":
            if count % len(self.caches) != self.current:
                self.current = count % len(self.caches)
                self.entries.append(Switch(self.current))
        elif slots:
            self._operate(word, count, each)

    def _rows(self, word: str, count: int, each: tuple[int, ...]) -> tuple[int, ...]:
        """The rows that the current cache is reordered to: moved by `count`, without one, or
        `count` of which two are the same."""
        batch = self.caches[self.current][0]
        if word == "reorder":
            return tuple((row + count) % batch for row in range(batch))
        if word == "select":
            return tuple(row for row in range(batch) if row != each[0] % batch) or (0,)
        rows = tuple(n % batch for n in each[: min(max(2, count), self.rows)])
        return rows if len(set(rows)) < len(rows) else (*rows[:-1], rows[0])

    def _feed(self, word: str, count: int, each: tuple[int, ...]) -> None:
        size = min(count, self.max_length - self.used)
        if size < 1:
            return
        batch = self.caches[self.current][0]
        # The last ones, since shrinking moves what is not nought to the end before it takes rows;
        # and one at least is padded.
        pads = tuple(n % size for n in each[-batch:])
        if pads and size > 1 and not any(pads):
            pads = (*pads[:-1], 1)
        self.entries.append(Padded(size, word, pads) if any(pads) else size)
        self.caches[self.current][1] += size
        self.used += size

    def _operate(self, word: str, count: int, each: tuple[int, ...]) -> None:
        cache = self.caches[self.current]
        if word == "crop":
            # Others leave something, and small ones half of what is stored.
            most = cache[1] // 2 if count <= SMALL else cache[1] - 1
            some = 1 + (count - 1) % max(1, most)
            count = {ALL: cache[1], OVER: cache[1] + 1}.get(count, some)
            self.entries.append(Crop(count))
            cache[1] = max(0, cache[1] - count)
        elif word in ROWS:
            rows = self._rows(word, count, each)
            if rows != tuple(range(cache[0])):
                self.entries.append(Reorder(rows))
                cache[0] = len(rows)
        elif word == "fork":
            if len(self.caches) < MOST_CACHES:
                self.caches.append(list(cache))
                self.current = len(self.caches) - 1
                self.entries.append(Fork())
        else:
            self.entries.append(Restore() if word == "restore" else Reset())
            cache[1] = 0 if word == "reset" else cache[1]
