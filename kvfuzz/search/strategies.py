"""Hypothesis strategies for cases, which shrink towards one row of few tokens.

A short run must reach every family of schedules, so each *focus* is drawn equally often: token by
token; prefill and then single tokens; arbitrary chunks; and a focus for each kind of program that
the subject offers (`kvfuzz.search.programs`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any

from hypothesis import strategies as st

from kvfuzz.case.case import Case
from kvfuzz.case.schedule import Entry
from kvfuzz.errors import UsageError
from kvfuzz.search.program_builder import Bounds
from kvfuzz.search.programs import Program, focuses, programs
from kvfuzz.subjects.boundaries import Boundary
from kvfuzz.subjects.call_limits import ANY_CALL, CallLimits
from kvfuzz.subjects.protocol import Factory

LONGEST = 20
"""Tokens of an ordinary row, at most, by default."""
ORDINARY = 80
"""Tokens of an ordinary row, at most, where the user asks for longer ones. Rows beyond are long
rows (`kvfuzz.search.long_rows`)."""
FARTHEST = 520
"""Tokens of a long row, at most, unless the user asks for more: 512 can be crossed."""
MOST_LOGITS = 2**22
"""A long row has at most as many logits, unless the user asks for more: of a vocabulary of 50,000,
those of 83 tokens, which is as many as four ordinary rows have."""
MOST_CALLS = 64
"""A long row comes in at most so many of the longest calls that the subject takes, unless the user
asks for more."""
MOST_ROWS = 4
SMALL_CHUNK = 6
MOST_SEEDS = 2**16
MOST_REJECTED = 5
"""At most this many cases are rejected for each example."""


@dataclass(frozen=True)
class Space:
    """The set of cases to draw from: token ids below `vocab_size`, ordinary rows of up to
    `max_length` tokens and a few of up to `reach`, which cross the `boundaries` of the subject;
    what the subject can be built with, what it `offers` beyond the protocol, and the `calls` that
    it takes. `limit` is the max_length of the subject."""

    vocab_size: int
    max_length: int
    dtypes: tuple[str, ...]
    seeded: bool = True
    choices: Mapping[str, tuple[Any, ...]] = field(default_factory=dict)
    fixed: Mapping[str, Any] = field(default_factory=dict)
    offers: frozenset[str] = frozenset()
    calls: CallLimits = ANY_CALL
    reach: int = 0
    boundaries: tuple[Boundary, ...] = ()
    limit: int | None = None

    @property
    def bounds(self) -> Bounds:
        """The bounds of every program."""
        return Bounds(self.max_length, self.offers, self.calls)

    @property
    def most_rows(self) -> int:
        """The number of rows of a case, at most."""
        return min(MOST_ROWS, self.vocab_size, self.calls.rows or MOST_ROWS)


def space_of(factory: Factory, max_length: int | None = None) -> Space:
    """Returns the space of cases for the subjects of `factory`, with rows of up to `max_length`
    tokens. By default ordinary rows have up to LONGEST, and a few long ones up to FARTHEST and
    MOST_LOGITS; never more than the subject's max_length. Raises UsageError."""
    limits = factory.limits()
    if max_length is not None and limits.max_length is not None and max_length > limits.max_length:
        raise UsageError(
            f"rows of {max_length} tokens are longer than {factory.name} takes "
            f"(max_length {limits.max_length})"
        )
    if max_length is not None and max_length < 1:
        raise UsageError(f"max_length should be at least 1 token, got {max_length}")
    most = max_length or min(LONGEST, limits.max_length or LONGEST)
    affordable = max(LONGEST, min(FARTHEST, MOST_LOGITS // limits.vocab_size))
    if limits.calls.longest is not None:
        affordable = max(LONGEST, min(affordable, MOST_CALLS * limits.calls.longest))
    reach = max_length or min(affordable, limits.max_length or affordable)
    return Space(
        limits.vocab_size,
        most,
        factory.dtypes,
        factory.seeded,
        factory.choices,
        factory.fixed,
        limits.offers,
        limits.calls,
        reach,
        limits.boundaries,
        limits.max_length,
    )


def focuses_of(space: Space) -> tuple[str, ...]:
    """Returns every focus that cases of `space` can have."""
    return (*PLAIN_FOCUSES, *focuses(space.offers))


def cases(space: Space, focus: str | None = None) -> st.SearchStrategy[Case]:
    """Draws a case of `space` about `focus` (default: any). Its rows are distinct and of one
    length."""
    choices = {name: st.sampled_from(values) for name, values in space.choices.items()}
    return _cases(space, focus, choices, st.sampled_from(space.dtypes))


@st.composite
def _cases(
    draw: st.DrawFn,
    space: Space,
    focus: str | None,
    choices: Mapping[str, st.SearchStrategy[Any]],
    dtypes: st.SearchStrategy[str],
) -> Case:
    most_rows, longest = space.most_rows, min(space.max_length, ORDINARY)
    if focus is None:
        focus = draw(st.sampled_from(focuses_of(space)))
    if focus in PLAIN_FOCUSES:
        program = Program(space.calls.divided(draw(_plain(focus, longest))), 1)
    else:
        program = draw(programs(focus, most_rows, replace(space.bounds, max_length=longest)))
        most_rows = program.rows
    rows = draw(_rows(space.vocab_size, program.columns, program.rows, most_rows))
    drawn = {name: draw(choice) for name, choice in choices.items()}
    return Case(
        tokens=tuple(rows),
        schedule=program.schedule,
        seed=draw(_SEEDS) if space.seeded else 0,
        dtype=draw(dtypes),
        config={**drawn, **space.fixed},
        given=program.given,
        keep=program.keep,
    )


# Hypothesis validates a strategy when it first draws from it, which takes longer than the draw. So
# each strategy is made once.
_SEEDS = st.integers(0, MOST_SEEDS - 1)


@lru_cache(maxsize=1024)
def _rows(
    vocab_size: int, length: int, fewest: int, most: int
) -> st.SearchStrategy[list[tuple[int, ...]]]:
    """Draws `fewest` to `most` distinct rows of `length` tokens."""
    token = st.integers(0, vocab_size - 1)
    row = st.lists(token, min_size=length, max_size=length).map(tuple)
    return st.lists(row, min_size=fewest, max_size=most, unique=True)


@lru_cache(maxsize=64)
def _plain(focus: str, max_length: int) -> st.SearchStrategy[tuple[int, ...]]:
    return PLAIN_FOCUSES[focus](max_length)


@dataclass
class Balance:
    """Decides which drawn cases to run, so that a run of `examples` covers `space` evenly.
    Independent draws would leave a setting out of a short run, and Hypothesis often draws the
    smallest case.

    `missing` holds the settings that no case has had yet, `schedules` those that were drawn.
    `single` counts the cases of one call, which read no cache, and `rejected` those not to run.
    """

    space: Space
    examples: int
    missing: set[str] = field(init=False)
    drawn: int = 0
    single: int = 0
    rejected: int = 0
    schedules: set[tuple[Entry, ...]] = field(default_factory=set)

    def __post_init__(self) -> None:
        choices = {"dtype": self.space.dtypes, **self.space.choices}
        self.missing = {repr(pair) for name in choices for pair in _pairs(name, choices[name])}

    def wants(self, case: Case) -> bool:
        """Returns whether to run `case`; if not, another is to be drawn instead.

        After a third of a run, only cases with a missing setting are wanted, until none is missing.
        One case in eight may consist of a single call. No program is run twice.
        """
        settings = {"dtype": case.dtype, **case.config}
        new = self.missing & {repr(pair) for pair in settings.items()}
        single = not case.reads_cache
        crowded = single and self.space.max_length > 1 and 8 * self.single > self.drawn
        crowded |= not case.is_plain and case.schedule in self.schedules
        idle = bool(self.missing) and not new and 3 * self.drawn >= self.examples
        if (crowded or idle) and self.rejected < MOST_REJECTED * self.examples:
            self.rejected += 1
            return False
        self.missing -= new
        self.drawn += 1
        self.single += single
        self.schedules.add(case.schedule)
        return True


def _pairs(name: str, values: tuple[Any, ...]) -> list[tuple[str, Any]]:
    return [(name, value) for value in values]


def draw_one_by_one(max_length: int) -> st.SearchStrategy[tuple[int, ...]]:
    """Draws up to `max_length` single tokens."""
    return st.integers(1, max_length).map(lambda count: (1,) * count)


def draw_prefill(max_length: int) -> st.SearchStrategy[tuple[int, ...]]:
    """Draws a prefill and then single tokens."""
    return st.integers(1, max_length).flatmap(
        lambda prefill: st.integers(0, max_length - prefill).map(
            lambda decodes: (prefill, *(1,) * decodes)
        )
    )


def draw_chunks(max_length: int) -> st.SearchStrategy[tuple[int, ...]]:
    """Draws arbitrary chunks, mostly small ones."""
    small = st.integers(1, min(SMALL_CHUNK, max_length))
    size = st.one_of(small, small, st.integers(1, max_length))
    chunks = st.lists(size, min_size=1, max_size=max(SMALL_CHUNK, max_length // 2))
    return chunks.map(lambda sizes: _cut(sizes, max_length))


PLAIN_FOCUSES = {
    "token by token": draw_one_by_one,
    "prefill + decode": draw_prefill,
    "chunks": draw_chunks,
}


def _cut(sizes: list[int], max_length: int) -> tuple[int, ...]:
    """Returns the leading chunks of `sizes` that fit into `max_length`, the last one cut to fit."""
    kept: list[int] = []
    for size in sizes:
        left = max_length - sum(kept)
        if left <= 0:
            break
        kept.append(min(size, left))
    return tuple(kept)
