"""Draws the few long rows of a round: cases that climb over the boundaries of a subject.

A row of hundreds of tokens costs as much as ten ordinary cases, so a round has a budget of tokens
for them. A long row is prefilled in chunks up to a boundary, crosses it (by a chunk, token by
token, or in the call that fills it), and goes on to the next one. Beyond a boundary, many do an
operation that the subject offers, such as a crop back across it.

Unlike other cases they are not drawn by Hypothesis, which begins each run with the simplest case:
here each case has a boundary of its own to cross, in turn.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, replace

from kvfuzz.case.case import KEEP, Case
from kvfuzz.search.program_builder import ROWS, Move
from kvfuzz.search.programs import (
    KEPT,
    MORE_CACHES,
    Program,
    argument_sets,
    fit_moves,
    operations,
)
from kvfuzz.search.strategies import MOST_SEEDS, Space
from kvfuzz.subjects.protocol import has_one_cache

TAILS = (64, 256)
"""Lengths that are crossed although nothing names them, if the subject takes them."""
DOUBLED = (32, 64, 128, 256, 512)
"""Lengths that are crossed on the way to a higher one: a pool that doubles names none of them."""
SHARE = 12
"""One case in so many may be long."""
TOKENS = 6
"""Tokens of long rows for each case of a round, about a quarter of what the others feed. The first
long case of a round may take twice as many."""
FEWEST = 4
"""The least boundary that is worth a case of its own."""
MOST_CROSSED = 6
BEYOND = 5
"""Tokens that a row is fed beyond the last boundary, at most, before an operation."""
OPERATED = 0.75
"""The share of climbs that end with an operation; lower boundaries have one half as often."""
STAYING = ("crop", "fork", "restore", *ROWS)
"""Operations after which a row can go on to the next boundary."""
_HELD = {"feed": 1, "crop": -1}
PLAIN_ROWS = (1, 1, 1, 2)
PADDED = (None, None, None, "left", "right")
NONE: tuple[int, ...] = ()


@dataclass(frozen=True)
class Climb:
    """A long case to draw: `number` in the hunt, over the boundary `top`, in rows of at most
    `longest` tokens."""

    number: int
    top: int
    longest: int


def climbs(space: Space, index: int, examples: int) -> list[Climb]:
    """Returns the long cases of round `index`, of `examples` cases. A round begins with one of the
    boundaries within reach, whatever that costs: the first round with the least, which finds most,
    and the next ones with the highest, the second highest, and so on. Others follow, as far as
    they fit into the budget."""
    tops, asked = tops_of(space), _is_asked_for(space)
    if not tops:
        return []
    most, budget, spent = examples // SHARE, examples * TOKENS, 0
    first = tops[-1 - (index - 1 + asked) % len(tops)]
    found: list[Climb] = []
    for top in (first, *(tops[(index + turn) % len(tops)] for turn in range(1, most + len(tops)))):
        cost = min(top + BEYOND, space.reach)
        if len(found) < most and (not found or spent + cost <= budget):
            found.append(Climb(index * most + len(found), top, space.reach))
            spent += cost
    return found


def tops_of(space: Space) -> list[int]:
    """Returns the row lengths that long cases of `space` cross, ascending."""
    values = {*TAILS, *(one.value for one in space.boundaries)}
    if _is_asked_for(space):
        values.add(space.reach)
    return sorted(value for value in values if FEWEST <= value <= space.reach)


def _is_asked_for(space: Space) -> bool:
    """Whether rows as long as the reach of `space` have to be drawn, and first: the user has asked
    for them, or the subject takes no more."""
    return space.reach == space.max_length


def draw_climb(space: Space, climb: Climb, seed: int) -> Case:
    """Returns the case that `seed` draws for `climb`, always the same one."""
    rng = random.Random(seed)
    program = _program(space, climb, rng)
    keep = rng.choice((None, *KEPT)) if KEEP in space.offers else None
    rows = _distinct_rows(space.vocab_size, program.columns, program.rows, rng)
    return Case(
        tokens=rows,
        schedule=program.schedule,
        seed=rng.randrange(MOST_SEEDS) if space.seeded else 0,
        dtype=rng.choice(space.dtypes),
        config={**{name: rng.choice(v) for name, v in space.choices.items()}, **space.fixed},
        given=program.given,
        keep=keep,
    )


def _program(space: Space, climb: Climb, rng: random.Random) -> Program:
    words = sorted(operations(space.offers))
    moves: list[Move] = []
    held, crossed = 0, _crossed(space, climb, rng)
    for rank, boundary in enumerate(crossed):
        way = (climb.number + rank) % 3
        sizes = _crossing(held, boundary, way, space.calls.chunks, rng)
        held += sum(sizes)
        moves += _feeds(sizes)
        at_top = boundary == climb.top
        able = words if at_top else [word for word in words if word in STAYING]
        if sizes and able and rng.random() < (OPERATED if at_top else OPERATED / 2):
            more = _operation(rng.choice(able), space.offers, rng)
            moves += more
            held += sum(_HELD.get(word, 0) * count for word, count, _ in more)
    rows = _rows(space, climb, moves, rng)
    side = rng.choice(PADDED) if "mask" in space.offers else None
    if side is not None:
        pads = tuple(rng.randrange(4) for _ in range(rows))
        moves[0] = (side, max(2, moves[0][1]), pads)
    given = rng.choice(argument_sets(space.offers))
    return fit_moves(rows, moves, given, 0, replace(space.bounds, max_length=climb.longest))


def _rows(space: Space, climb: Climb, moves: Sequence[Move], rng: random.Random) -> int:
    """Returns the number of rows: two where an operation needs them, and in some short climbs."""
    rows = rng.choice(PLAIN_ROWS) if climb.top <= TAILS[0] else 1
    needed = 2 if any(word in ROWS for word, _, _ in moves) else 1
    return min(max(rows, needed), space.most_rows)


def _crossed(space: Space, climb: Climb, rng: random.Random) -> list[int]:
    """Returns the boundaries that a climb crosses, ascending: its top, and some of those below,
    unless that would take a call for each token."""
    if not space.calls.chunks:
        return [climb.top]
    below = sorted(value for value in {*DOUBLED, *tops_of(space)} if value < climb.top)
    return sorted([*rng.sample(below, min(len(below), MOST_CROSSED - 1)), climb.top])


def _crossing(held: int, boundary: int, way: int, chunks: bool, rng: random.Random) -> list[int]:
    """Returns the sizes of the calls that take a cache of `held` tokens over `boundary`: by a
    chunk, token by token, or in the call that comes from the boundary before; none if it holds as
    many already."""
    short = (rng.randint(1, 3), rng.randint(0, 2), rng.randint(-1, 1))[way]
    rise = boundary - short - held
    if rise < 1:
        return []
    first = rise if way == 2 or not chunks else rng.choice((rise, rng.randint(1, rise)))
    last = [short + rng.randint(1, 3)] if way == 0 else [1] * (max(short, 0) + 2)
    return [size for size in (first, rise - first) if size] + last


def _feeds(sizes: Sequence[int]) -> list[Move]:
    return [("feed", size, NONE) for size in sizes]


def _operation(word: str, offers: frozenset[str], rng: random.Random) -> list[Move]:
    """Returns an operation just beyond a boundary, and calls that go on from it. A crop is mostly
    one back across the boundary, and the calls cross it again by single tokens or a chunk."""
    over = rng.randint(1, BEYOND)
    again = rng.choice(((1, 1), (2 + over,), (3, 1), (over + 1, 1)))
    if word in MORE_CACHES:
        back: list[Move] = [] if has_one_cache(offers) else [("switch", 0, NONE)]
        return [("new", 0, NONE), *_feeds([over]), *back, *_feeds(again)]
    count = 2 + over if word == "crop" else over
    return [(word, count, tuple(rng.randrange(4) for _ in range(4))), *_feeds(again)]


def _distinct_rows(
    vocab_size: int, length: int, count: int, rng: random.Random
) -> tuple[tuple[int, ...], ...]:
    rows: dict[tuple[int, ...], None] = {}
    while len(rows) < count:
        rows[tuple(rng.randrange(vocab_size) for _ in range(length))] = None
    return tuple(rows)
