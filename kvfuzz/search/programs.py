"""Strategies for programs: schedules with every operation that a subject offers.

A program is drawn as a list of *moves* that are independent of each other, and then *fitted*:
counts are mapped to rows and lengths that exist, and moves that are impossible at their place are
dropped. So Hypothesis can delete any move while shrinking, without breaking the others.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

from hypothesis import strategies as st

from kvfuzz.case.case import GIVEN, KEEP, Case
from kvfuzz.case.features import PADDED
from kvfuzz.case.schedule import Entry, Join, New, Padded, Ragged, Rollback, Tree, columns_of
from kvfuzz.search.program_builder import (
    ALL,
    OVER,
    ROWS,
    SMALL,
    Bounds,
    Move,
    ProgramBuilder,
)
from kvfuzz.subjects.needs import LENGTHS, PARENTS, TWO_CACHES
from kvfuzz.subjects.protocol import has_one_cache

MOST_MOVES = 8
LARGE = 10
MORE_CACHES = {"new", "switch"}
"""Moves that every subject takes, unless it holds one cache at a time."""
LATE = 7
"""With this many slots the windows of small models are full, and their oldest entries dropped."""
UNEVEN = (Ragged.word, Tree.word, "rollback", "join")
"""Moves that give each row a length of its own."""
MOST_CANDIDATES = 6
KEPT = (1, 1, 2, 3, 0)
"""The numbers of last logits that calls are asked for; 0 for all."""


@dataclass(frozen=True)
class Program:
    """A `schedule` for at least `rows` rows, the optional arguments that every call is `given`, and
    the `keep` of the case."""

    schedule: tuple[Entry, ...]
    rows: int
    given: tuple[str, ...] = ()
    keep: int | None = None

    @property
    def columns(self) -> int:
        """The number of tokens of each row."""
        return sum(columns_of(entry) or 0 for entry in self.schedule)


_NONE: tuple[int, ...] = ()
MIXED = "mixed"


def focuses(offers: frozenset[str]) -> tuple[str, ...]:
    """Returns every focus of a program for a subject with these `offers`: padding on one side, one
    operation, or everything mixed. For one with no operation and no argument to draw there is one
    focus, on more caches than one, so that plain cases keep three quarters of a hunt."""
    words = operations(offers)
    if words <= MORE_CACHES and not offers & {*GIVEN, KEEP}:
        return ("new",)
    padding = PADDED if "mask" in offers else ()
    kept = (KEEP,) if KEEP in offers else ()
    return (*padding, *sorted(words), *kept, MIXED)


@lru_cache(maxsize=256)
def programs(focus: str, most_rows: int, bounds: Bounds) -> st.SearchStrategy[Program]:
    """Returns the strategy for programs about `focus`, of up to `most_rows` rows, that keep the
    `bounds`.

    A program always contains what it is about, even if a bug does not need it: `simplify` of
    `kvfuzz.search.shrink` removes it then.
    """
    each = st.lists(st.integers(0, SMALL), min_size=most_rows, max_size=most_rows).map(tuple)
    offers = bounds.offers
    first, kinds = _moves_about(focus, offers, each)
    moves = st.tuples(
        st.tuples(*first), st.lists(_either(kinds), max_size=MOST_MOVES - len(first))
    ).map(lambda drawn: [*drawn[0], *drawn[1]])
    fewest = min(2, most_rows) if focus in (*ROWS, *UNEVEN) and focus != Tree.word else 1
    rows = st.integers(fewest, most_rows)
    begun = st.integers(0, most_rows - 1) if focus in (*ROWS, "join", MIXED) else st.just(0)

    def fit(drawn: tuple[int, list[Move], tuple[str, ...], int]) -> Program:
        rows, moves, given, start = drawn
        if focus == "join" and rows > 1:
            start = 1 + start % (rows - 1)  # leaves room for the rows of another cache
        return fit_moves(rows, moves, given, start, bounds)

    fitted = st.tuples(rows, moves, st.sampled_from(argument_sets(offers)), begun).map(fit)
    if focus != KEEP:
        return fitted
    return st.tuples(fitted, st.sampled_from(KEPT)).map(
        lambda drawn: replace(drawn[0], keep=drawn[1])
    )


def _moves_about(
    focus: str, offers: frozenset[str], each: st.SearchStrategy[tuple[int, ...]]
) -> tuple[list[st.SearchStrategy[Move]], list[st.SearchStrategy[Move]]]:
    """Returns the strategies for the first moves of a program about `focus`, in order, and those to
    draw its other moves from. `each` draws a number for each row."""
    feed = _sizes(1).map(_feed)
    words = sorted(operations(offers)) if focus in (MIXED, KEEP) else [focus]
    if focus == KEEP:  # a tree is verified by the logits of all its candidates
        words = [word for word in words if word != Tree.word]
    kinds = [_move(word, each) for word in words]
    # No row has a length of its own beside padding.
    padding = PADDED if "mask" in offers and focus not in UNEVEN else ()
    padded = [_move(word, each) for word in padding]
    start = _start(focus, padding, each)
    if focus in (MIXED, KEEP):
        first = [start]
    elif focus == "join":
        first = [start, _move("guests", each), feed, kinds[0]]
        kinds += [_move(word, each) for word in sorted({"select", "new"} & operations(offers))]
        kinds.append(_move("guests", each))
    elif focus == "switch":
        kinds += [_move(word, each) for word in sorted({"new", "fork"} & operations(offers))]
        first = [start, _either(kinds[1:]), feed, kinds[0]]
    else:
        # Every move but padding needs a cache that holds something.
        first = [kinds[0]] if focus in PADDED else [start, kinds[0]]
    if focus == "crop":
        # What a crop leaves behind shows in a call that is too short to write over it.
        first.append(st.integers(1, 2).map(_feed))
    if focus in ("new", "fork") and not has_one_cache(offers):
        kinds.append(_move("switch", each))
    if focus in (MIXED, KEEP):
        kinds += padded
    if focus == KEEP:
        kinds += [feed] * len(kinds)  # no operation matters more than a chunk
    if focus == "fork" and "crop" in offers:
        kinds.append(_move("hit", each))
        first = _prefix_hit(kinds[0], kinds[-1], feed)
    if focus == "restore" and "crop" in offers:
        kinds.append(_move("crop", each))
    if focus in PADDED:
        kinds.append(_either([_move(word, each) for word in sorted(operations(offers))]))
    kinds += [feed] * (1 + len(kinds) // 3)
    return first, kinds


def _prefix_hit(
    fork: st.SearchStrategy[Move], hit: st.SearchStrategy[Move], feed: st.SearchStrategy[Move]
) -> list[st.SearchStrategy[Move]]:
    """Returns the first moves of a program in which a stored prefix, of which only the first tokens
    fit, is copied, cut and continued; then the stored one, or the copy again."""
    long = _either([st.integers(least, LARGE).map(_feed) for least in (2, LATE)])
    back = _either([*[st.just(("switch", 0, _NONE))] * 2, feed])
    return [long, _either([hit, hit, fork]), feed, back]


def _start(
    focus: str, padding: tuple[str, ...], each: st.SearchStrategy[tuple[int, ...]]
) -> st.SearchStrategy[Move]:
    """Draws the first call of a program about `focus`, with or without `padding`.

    Every other program begins with padding, which later operations have to keep track of. Left
    padding is drawn twice as often: a crop removes right padding first.
    """
    bare = [_first_sizes(1).map(_feed)]
    if focus == "crop":
        # With a mask some faults of a crop are out of sight, and few slots leave it little to do.
        bare += [st.integers(LATE, LARGE).map(_feed)] * 2
    if focus in UNEVEN:
        bare.append(st.integers(LATE, LARGE).map(_feed))
    if focus == Ragged.word:
        bare.append(_padding(Ragged.word, _first_sizes(1), each))
    if not padding:
        return _either(bare)
    sides = ("left padding", *padding)
    return _either([*bare, _either([_padding(word, _first_sizes(2), each) for word in sides])])


def _feed(size: int) -> Move:
    return "feed", size, _NONE


def _either(moves: Sequence[st.SearchStrategy[Move]]) -> st.SearchStrategy[Move]:
    """Draws one of `moves`, each equally often. (`one_of` flattens nested alternatives and would
    weight a strategy by how many it has.)"""
    return st.integers(0, len(moves) - 1).flatmap(lambda number: moves[number])


def _sizes(least: int) -> st.SearchStrategy[int]:
    """Draws how many tokens a call feeds: often few, often enough to fill a small window."""
    large = st.integers(least, LARGE)
    return st.one_of(st.just(least), st.integers(least, SMALL), large, large)


def _first_sizes(least: int) -> st.SearchStrategy[int]:
    """Draws how many tokens the first call feeds: more often many, so that later operations have
    something to act on."""
    return st.one_of(_sizes(least), st.integers(LATE, LARGE))


def _padding(
    word: str, sizes: st.SearchStrategy[int], each: st.SearchStrategy[tuple[int, ...]]
) -> st.SearchStrategy[Move]:
    return st.tuples(st.just(word.partition(" ")[0]), sizes, each)


def operations(offers: frozenset[str]) -> set[str]:
    """Returns the operations that can be drawn. A second cache needs no offer; one that lives
    beside the first is not drawn for a subject that holds one at a time."""
    known = {
        LENGTHS: Ragged.word,
        PARENTS: Tree.word,
        "crop": "crop",
        "rollback": "rollback",
        "join": "join",
        "copy": "fork",
        "save": "restore",
        "reset": "reset",
    }
    rows = ROWS if "reorder" in offers else ()
    words = {*MORE_CACHES, *rows, *(word for offer, word in known.items() if offer in offers)}
    return words - {*TWO_CACHES} if has_one_cache(offers) else words


def _move(word: str, each: st.SearchStrategy[tuple[int, ...]]) -> st.SearchStrategy[Move]:
    match word:
        case "left padding" | "right padding":
            return _padding(word, _sizes(2), each)
        case Tree.word:
            parents = st.lists(
                st.integers(0, MOST_CANDIDATES), min_size=MOST_CANDIDATES, max_size=MOST_CANDIDATES
            )
            numbers = st.tuples(parents.map(tuple), each).map(lambda two: (*two[0], *two[1]))
            return st.tuples(st.just(word), st.integers(1, MOST_CANDIDATES), numbers)
        case Ragged.word:
            return _padding(word, _sizes(1), each)
        case "crop":
            counts = st.one_of(
                st.integers(2, SMALL), st.integers(1, LARGE), st.sampled_from((ALL, OVER, OVER))
            )
            return counts.map(lambda count: (word, count, ()))
        case "reorder" | "select" | "repeat" | "rollback":
            return st.tuples(st.just(word), st.integers(1, SMALL), each)
        case "hit":
            return st.integers(1, LARGE).map(lambda count: (word, count, ()))
        case "new" | "guests" | "switch" | "join":
            return st.integers(0, SMALL - 1).map(lambda count: (word, count, ()))
        case _:
            return st.just((word, 0, ()))


def argument_sets(offers: frozenset[str]) -> tuple[tuple[str, ...], ...]:
    """Returns the sets of optional arguments to draw from; half of them are empty."""
    known = [word for word in GIVEN if word in offers]
    none: tuple[tuple[str, ...], ...] = ((),) * max(1, len(known) + 1)
    return (*none, *((word,) for word in known), *((tuple(known),) if len(known) > 1 else ()))


def fit_moves(
    rows: int,
    moves: Sequence[Move],
    given: tuple[str, ...],
    begun: int,
    bounds: Bounds,
) -> Program:
    """Fits `moves` to a table of `rows` rows and to `bounds`. The first cache has `begun` rows if
    that is between 0 and `rows`, else all of them."""
    start = begun if 0 < begun < rows else rows
    fit = ProgramBuilder(rows, bounds, [[0] * start])
    if start < rows:
        fit.entries.append(New(start))
    for move in moves:
        fit.add(*move)
    if not fit.used or columns_of(fit.entries[-1]) is None:
        fit.add("feed", 1, ())
    schedule = fit.schedule()
    if any(isinstance(entry, Ragged | Tree | Rollback | Join) for entry in schedule):
        given = tuple(word for word in given if word != "mask")
    if any(isinstance(entry, Padded) for entry in schedule):
        given = tuple(
            word
            for word in GIVEN
            if word in {*given, "mask", *_required_with_padding(bounds.offers)}
        )
    return Program(schedule, rows, given)


def has_required_args(case: Case, offers: Collection[str]) -> bool:
    """Returns whether `case` gives a subject with these `offers` all the arguments that it needs
    to handle padding."""
    padded = any(isinstance(entry, Padded) for entry in case.schedule)
    return not padded or _required_with_padding(offers) <= set(case.given)


def _required_with_padding(offers: Collection[str]) -> set[str]:
    """Returns the arguments that padding requires besides the mask: the positions, for a subject
    that takes them and does not derive them from the mask."""
    return {"positions"} & set(offers) if "positions_from_mask" not in offers else set()
