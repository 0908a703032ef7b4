"""Simpler versions of a case: what a shrinker may try, in the order in which it should.

Each function yields versions of one case that are simpler in one respect, the boldest first. A
version that is no valid case is left out; whether it still fails is for the caller to find out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from functools import partial
from itertools import pairwise
from typing import Any

from kvfuzz.case.case import Case
from kvfuzz.case.schedule import (
    FEEDING,
    SIDES,
    Crop,
    Entry,
    Fork,
    Join,
    New,
    Padded,
    Ragged,
    Reorder,
    Rollback,
    Switch,
    Tree,
    columns_of,
)
from kvfuzz.errors import InvalidCase
from kvfuzz.search.strategies import LONGEST, Space

Reduction = Callable[[Case, Space], Iterator[Case]]


def fewer_rows(case: Case, _space: Space) -> Iterator[Case]:
    """Without one row of the token table, last rows first; without a first entry that takes fewer
    rows than there are; with one row that has the padding of all."""
    first = case.schedule[0]
    if isinstance(first, New):
        with suppress(InvalidCase):
            yield replace(case, tokens=case.tokens[: first.rows], schedule=case.schedule[1:])
    if case.batch == 1:
        return
    for row in reversed(range(case.batch)):
        with suppress(InvalidCase):
            yield without_row(case, row)
    if any(isinstance(entry, Padded) for entry in case.schedule):
        with suppress(InvalidCase):
            yield replace(
                case, tokens=case.tokens[:1], schedule=tuple(map(_of_one_row, case.schedule))
            )


def _of_one_row(entry: Entry) -> Entry:
    if isinstance(entry, Padded):
        return replace(entry, pads=(max(entry.pads),))
    return New(1) if isinstance(entry, New) else entry


def fewer_entries(case: Case, _space: Space) -> Iterator[Case]:
    """Without a run of schedule entries and the columns that they fed: half of them first, then
    shorter runs, down to one."""
    count = len(case.schedule)
    length = count // 2
    while length:
        for start in reversed(range(count - length + 1)):
            with suppress(InvalidCase):
                yield without_entries(case, start, start + length)
        length = min(length - 1, 2) if length <= 4 else length // 2


def shorter_calls(case: Case, space: Space) -> Iterator[Case]:
    """With fewer tokens in one call: one, half of them, or one less, and of a long call also a
    quarter or a sixteenth less, as far as the subject takes such a call; keeps the last tokens, or
    the first."""
    steps = list(case.steps())
    for index, entry in enumerate(case.schedule):
        size = columns_of(entry)
        if size is None:
            continue
        least = 2 if isinstance(entry, Padded) else 1  # one column cannot be padded
        takes = partial(space.calls.pieces, filled=steps[index].filled)
        # One less at a time, a long call would use up the passes that shrinking may take.
        less = (size // 4, size // 16) if size > LONGEST else ()
        wanted = {least, size // 2, size - 1, *(size - part for part in less)}
        for fewer in sorted({takes(n)[0] for n in wanted if n > 0}):
            for dropped in (size - fewer, 0) if least <= fewer < size else ():
                with suppress(InvalidCase):
                    yield _shorten_call(case, index, fewer, dropped)


def merged_calls(case: Case, _space: Space) -> Iterator[Case]:
    """With two neighbouring calls in one. In a plain schedule of ordinary rows the split into calls
    is what the case tests, so it is kept; that of a long row only carries it to its boundary."""
    kept = case.is_plain and case.length <= LONGEST
    for index, (entry, after) in enumerate(pairwise(case.schedule)):
        if not kept and isinstance(entry, int) and isinstance(after, int):
            yield _with_entries(case, index, 2, entry + after)


def one_long_prefill(case: Case, _space: Space) -> Iterator[Case]:
    """With the first calls of a long row in one: all but the last call, or fewer."""
    if case.is_plain and case.length > LONGEST:
        sizes = [entry for entry in case.schedule if isinstance(entry, int)]
        for stop in range(len(sizes) - 1, 1, -1):
            yield replace(case, schedule=(sum(sizes[:stop]), *sizes[stop:]))


def plainer_entries(case: Case, _space: Space) -> Iterator[Case]:
    """With one entry in its plainest form: no padding, or less of it; a crop of one token; an
    exchange of two rows, or rows of smaller numbers. With all padding on one side."""
    sides = {entry.side for entry in case.schedule if isinstance(entry, Padded)}
    for side in SIDES if len(sides) > 1 else sorted(sides & {"right"}) and SIDES[:1]:
        yield replace(case, schedule=tuple(_on_side(entry, side) for entry in case.schedule))
    for index, entry in enumerate(case.schedule):
        if isinstance(entry, FEEDING):
            plain = _with_entries(case, index, 1, entry.size)
            yield plain
            # Rows that differed only in their padding are now equal, which may hide the failure.
            yield _distinguish_rows(plain, index)
        for simpler in _plainer(entry, list(case.steps())[index].batch):
            with suppress(InvalidCase):
                yield _with_entries(case, index, 1, simpler)


def fewer_arguments(case: Case, _space: Space) -> Iterator[Case]:
    """Without one argument of the calls, or with fewer logits to keep."""
    for word in case.given:
        with suppress(InvalidCase):
            yield replace(case, given=tuple(other for other in case.given if other != word))
    if case.keep is not None:
        yield replace(case, keep=None)
        for fewer in sorted({1, case.keep // 2, case.keep - 1}):
            if 0 < fewer < case.keep:
                yield replace(case, keep=fewer)


def simpler_settings(case: Case, space: Space) -> Iterator[Case]:
    """With the first of the values that `space` draws from: of all settings and the model's seed,
    then of each."""
    first = {name: values[0] for name, values in space.choices.items() if name in case.config}
    plainest = replace(case, config={**case.config, **first}, dtype=_first_dtype(case, space))
    seeds = (0,) if space.seeded and case.seed else ()
    for seed in seeds:
        yield replace(plainest, seed=seed)
    if plainest != case:
        yield plainest
    for seed in seeds:
        yield replace(case, seed=seed)
    for name in first:
        for value in _before(case.config[name], space.choices[name]):
            yield replace(case, config={**case.config, name: value})
    for dtype in _before(case.dtype, space.dtypes):
        yield replace(case, dtype=dtype)


def smaller_tokens(case: Case, _space: Space) -> Iterator[Case]:
    """With zeros for tokens: for all, for all but the first of each row (which keeps rows apart),
    for each row, and then with 0, 1 or half of it for each token."""
    rows, rest = range(case.batch), (0,) * (case.length - 1)
    every = (
        ((0, *rest),) * case.batch,
        tuple((row, *rest) for row in rows),
        *(_with_row(case, row, (0, *rest)) for row in rows),
    )
    for tokens in every:
        if sum(map(sum, tokens)) < sum(map(sum, case.tokens)):
            yield replace(case, tokens=tokens)
    for row, own in enumerate(case.tokens):
        for column, token in enumerate(own):
            for smaller in sorted({0, 1, token // 2}):
                if smaller < token:
                    changed = (*own[:column], smaller, *own[column + 1 :])
                    yield replace(case, tokens=_with_row(case, row, changed))


REDUCTIONS: tuple[Reduction, ...] = (
    fewer_rows,
    one_long_prefill,
    fewer_entries,
    simpler_settings,
    shorter_calls,
    plainer_entries,
    merged_calls,
    fewer_arguments,
    smaller_tokens,
)
"""Those first that make every later try cheaper: fewer rows and calls, and the smallest model."""


def without_row(case: Case, row: int) -> Case:
    """Returns `case` without row `row` of the token table and of every cache. Raises InvalidCase
    where an operation needs it."""
    schedule = tuple(_entry_without_row(entry, row) for entry in case.schedule)
    kept = tuple(tokens for number, tokens in enumerate(case.tokens) if number != row)
    return replace(case, tokens=kept, schedule=schedule)


def up_to_column(case: Case, stop: int) -> Case:
    """Returns `case` up to column `stop`, where a call ends."""
    last = next(step for step in case.steps() if step.feeds and step.stop == stop)
    return replace(case, tokens=case.prefix(stop), schedule=case.schedule[: last.index + 1])


def _entry_without_row(entry: Entry, row: int) -> Entry:
    if isinstance(entry, Padded):
        pads = tuple(count for number, count in enumerate(entry.pads) if number != row)
        return replace(entry, pads=pads) if any(pads) else entry.size
    if isinstance(entry, Ragged):
        return Ragged((*entry.lengths[:row], *entry.lengths[row + 1 :]))
    if isinstance(entry, Tree):
        return Tree(entry.parents, (*entry.kept[:row], *entry.kept[row + 1 :]))
    if isinstance(entry, Rollback):
        return Rollback((*entry.counts[:row], *entry.counts[row + 1 :]))
    if isinstance(entry, Reorder):
        rows = tuple(old - (old > row) for number, old in enumerate(entry.rows) if number != row)
        if not rows:
            raise InvalidCase("no row of the cache is left")
        return Reorder(tuple(min(old, len(rows) - 1) for old in rows))
    if isinstance(entry, New) and row < entry.rows:
        return New(entry.rows - 1)
    return entry


def without_entries(case: Case, start: int, stop: int) -> Case:
    """Removes the entries `start` to `stop` from the schedule, the columns that they fed, and the
    ways to caches that they made."""
    steps = list(case.steps())
    first, last = steps[start].start, steps[stop - 1].stop
    begun = not isinstance(case.schedule[0], New)
    numbers = [n for n, entry in enumerate(case.schedule) if isinstance(entry, New | Fork)]
    gone = {numbers.index(n) + begun for n in numbers if start <= n < stop}
    rest = (*case.schedule[:start], *case.schedule[stop:])
    schedule = tuple(
        replace(entry, cache=entry.cache - sum(number < entry.cache for number in gone))
        if isinstance(entry, Switch | Join)
        else entry
        for entry in rest
        if not (isinstance(entry, Switch | Join) and entry.cache in gone)
    )
    tokens = tuple((*row[:first], *row[last:]) for row in case.tokens)
    return replace(case, tokens=tokens, schedule=schedule)


def _shorten_call(case: Case, index: int, size: int, dropped: int) -> Case:
    """Keeps only `size` columns of the call at `index`, after its first `dropped` ones."""
    step, entry = list(case.steps())[index], case.schedule[index]
    start = step.start + dropped
    tokens = tuple(
        (*row[: step.start], *row[start : start + size], *row[step.stop :]) for row in case.tokens
    )
    shorter: Entry = size
    if isinstance(entry, Padded):
        pads = tuple(min(count, size - 1) for count in entry.pads)
        shorter = Padded(size, entry.side, pads)
    if isinstance(entry, Ragged):
        shorter = Ragged(tuple(min(max(0, n - dropped), size) for n in entry.lengths))
    if isinstance(entry, Tree):
        shorter = _part_of_tree(entry, range(dropped, dropped + size))
    schedule = (*case.schedule[:index], shorter, *case.schedule[index + 1 :])
    return replace(case, tokens=tokens, schedule=schedule)


def _with_entries(case: Case, index: int, count: int, entry: Entry) -> Case:
    """Returns `case` with `entry` in place of `count` entries."""
    schedule = (*case.schedule[:index], entry, *case.schedule[index + count :])
    return replace(case, schedule=schedule)


def _plainer(entry: Entry, batch: int) -> Iterator[Entry]:
    """Yields plainer forms of `entry`, which leaves a cache of `batch` rows."""
    match entry:
        case Padded() | Ragged() | Tree():
            yield from _plainer_call(entry)
        case Crop(count):
            for fewer in sorted({1, count // 2, count - 1} - {0, count}):
                yield Crop(fewer)
        case Rollback(counts):
            yield from _plainer_counts(counts)
        case Reorder(rows):
            yield from _plainer_rows(rows, batch)
        case Switch(cache) | Join(cache) if cache:
            yield replace(entry, cache=0)
        case New(rows) if rows > 1:
            yield New(1)
            yield New(rows - 1)


def _plainer_call(entry: Padded | Ragged | Tree) -> Iterator[Entry]:
    """Yields plainer forms of a call: with less padding, longer rows, or other branches."""
    match entry:
        case Padded(size, side, pads):
            for less in _with_one_less(pads):
                if any(less):
                    yield Padded(size, side, less)
        case Ragged(lengths):
            for less in _with_one_less(tuple(entry.size - length for length in lengths)):
                if any(less):
                    yield Ragged(tuple(entry.size - count for count in less))
        case Tree(parents, kept):
            for less in _with_one_less(tuple(number + 1 for number in (*parents, *kept))):
                numbers = tuple(number - 1 for number in less)
                yield Tree(numbers[: entry.size], numbers[entry.size :])


def _part_of_tree(tree: Tree, left: range) -> Tree:
    """Returns the `tree` of the candidates that are `left`. One without its parent follows the row,
    and a row keeps what is left of its branch."""

    def place(number: int) -> int:
        return number - left.start if number in left else -1

    def last_of(candidate: int) -> int:
        return max((number for number in tree.branch(candidate) if number in left), default=-1)

    parents = tuple(place(tree.parents[number]) for number in left)
    return Tree(parents, tuple(place(last_of(candidate)) for candidate in tree.kept))


def _plainer_counts(counts: tuple[int, ...]) -> Iterator[Entry]:
    """Yields plainer forms of a rollback by `counts`: one of all rows alike, or of fewer tokens."""
    yield Crop(max(counts))
    for fewer in _with_one_less(counts):
        if any(fewer):
            yield Rollback(fewer)


def _with_one_less(counts: tuple[int, ...]) -> Iterator[tuple[int, ...]]:
    """Yields `counts` with 0, 1 or one less in place of one of them."""
    for row, count in enumerate(counts):
        for fewer in sorted({0, 1, count - 1}):
            if fewer < count:
                yield (*counts[:row], fewer, *counts[row + 1 :])


def _on_side(entry: Entry, side: str) -> Entry:
    return replace(entry, side=side) if isinstance(entry, Padded) else entry


def _plainer_rows(rows: tuple[int, ...], batch: int) -> Iterator[Reorder]:
    """Yields plainer reorders than that to `rows`: an exchange is plainer than a repetition, and
    that than a selection."""
    exchange = (1, 0, *range(2, batch))
    if batch > 1 and rows != exchange:
        yield Reorder(exchange)
    if batch == 1 and rows != (1, 0):
        yield Reorder((1, 0))
    if sorted(rows) == list(range(len(rows))) or batch == 1:
        return
    if len(rows) > 1 and any(rows):
        yield Reorder((0,) * len(rows))
    for place, row in enumerate(rows):
        if len(rows) > 2:
            yield Reorder((*rows[:place], *rows[place + 1 :]))
        if row:
            yield Reorder((*rows[:place], 0, *rows[place + 1 :]))


def _distinguish_rows(case: Case, index: int) -> Case:
    """Gives each row a different token in the first column of entry `index`."""
    column = list(case.steps())[index].start
    tokens = tuple(
        (*row[:column], number, *row[column + 1 :]) for number, row in enumerate(case.tokens)
    )
    return replace(case, tokens=tokens)


def _with_row(case: Case, row: int, tokens: tuple[int, ...]) -> tuple[tuple[int, ...], ...]:
    """Returns the token table of `case` with other `tokens` in one row."""
    return (*case.tokens[:row], tokens, *case.tokens[row + 1 :])


def _first_dtype(case: Case, space: Space) -> str:
    return next(iter(_before(case.dtype, space.dtypes)), case.dtype)


def _before(value: Any, values: tuple[Any, ...]) -> tuple[Any, ...]:
    """Returns the values that come before `value`: none if it is not among them."""
    return values[: values.index(value)] if value in values else ()
