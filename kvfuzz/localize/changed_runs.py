"""Finds the line behind a verdict of isolation or causality.

That is the first operation whose result, for a token that has not changed, moves when another row
or a later token does.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace

from torch import Tensor

from kvfuzz.case.case import Case, Step
from kvfuzz.case.layout import layout
from kvfuzz.localize.operations.difference import abs_difference, allowed_for
from kvfuzz.localize.operations.events import OUTPUT, Event, Recording
from kvfuzz.localize.operations.open_states import axes_of, find_opening
from kvfuzz.localize.operations.record import WatchedSubject, record
from kvfuzz.subjects.protocol import Subject
from kvfuzz.subjects.run import CachedPathRaised, Refused, run_cached, run_uncached

Rows = tuple[tuple[int, ...], ...]
_Part = Callable[[Event], Tensor | None]
# Lengths that the other axes of a state seldom have.
_LENGTHS = (11, 23, 47, 97)


@dataclass(frozen=True)
class Leak:
    """A run of a path that breaks a law: its `recording`, the operations that may be to blame, the
    likeliest first, and by how much the result of the first that moves has `moved`."""

    recording: Recording
    suspects: Sequence[Event]
    moved: float


def find_leak(subject: Subject, case: Case, law: str) -> Leak | None:
    """Returns the leak of the first path that breaks `law` on `case`; None where no result of an
    operation moves, and for padded rows."""
    rows = layout(case).sequences
    if law == "isolation":
        runs: list[Callable[[Rows], Recording]] = [lambda one: record_whole(subject, one)]
        if case.is_plain:
            runs.append(lambda one: record_cached(subject, replace(case, tokens=one)))
        changes = ((_other_rows(rows, row, subject), 0, row) for row in range(len(rows)))
    else:
        runs = [lambda one: record_whole(subject, one)]
        rows = _lengthened(rows, subject)
        length = len(rows[0])
        starts = sorted({length // 2, length - 1} - {0})
        changes = ((_later(rows, start, subject), 1, start) for start in starts)
    changed = list(changes)
    for run in runs:
        before = run(rows)
        for others, axis, kept in changed if len(set(map(len, rows))) == 1 else ():
            found = _first_moved(before, run(others), _entries(axis, kept, rows))
            if found is not None:
                event, moved = found
                opened = find_opening(before.events, event, len(rows[0])) if axis else [event]
                return Leak(before, opened, moved)
    return None


def _other_rows(rows: Rows, kept: int, subject: Subject) -> Rows:
    return tuple(row if n == kept else _next(row, subject) for n, row in enumerate(rows))


def _later(rows: Rows, start: int, subject: Subject) -> Rows:
    return tuple((*row[:start], *_next(row[start:], subject)) for row in rows)


def _lengthened(rows: Rows, subject: Subject) -> Rows:
    """Returns `rows` with more tokens, where they may be longer: no other axis of a state should
    have their length."""
    longest = max(map(len, rows))
    length = next((one for one in _LENGTHS if one > longest), longest)
    if len(set(map(len, rows))) > 1 or length > (subject.max_length or length):
        return rows
    more = range(1, length - longest + 1)
    return tuple((*row, *((row[-1] + n) % subject.vocab_size for n in more)) for row in rows)


def _next(tokens: tuple[int, ...], subject: Subject) -> tuple[int, ...]:
    return tuple((token + 1) % subject.vocab_size for token in tokens)


def _entries(axis: int, kept: int, rows: Rows) -> _Part:
    """Returns a function that takes from a state the part that has not changed: the row `kept`, or
    the tokens before it; None from a state whose shape does not tell."""

    def of_row(event: Event) -> Tensor | None:
        state, count = event.output, len(rows)
        # A buffer may have room for more rows.
        alone = state.dim() > 1 and (state.shape[0] == count or event.writes)
        return state[kept] if alone and state.shape[0] >= count > 1 else None

    def of_tokens(event: Event) -> Tensor | None:
        state = event.output
        sized = axes_of(state, len(rows[0]))
        for along in sized:  # of queries and keys, those of kept tokens
            state = state.narrow(along, 0, kept)
        return state if len(sized) in (1, 2) and state.dim() > 1 else None

    return of_row if axis == 0 else of_tokens


def _first_moved(one: Recording, other: Recording, part: _Part) -> tuple[Event, float] | None:
    for event, again in _pairs(one, other):
        mine, theirs = part(event), part(again)
        if mine is None or theirs is None or not mine.numel():
            continue
        apart = float(abs_difference(theirs, mine).max())
        if apart > allowed_for(event.output, 0.0):
            return event, apart
    return None


def _pairs(one: Recording, other: Recording) -> Iterator[tuple[Event, Event]]:
    for event, again in zip(one.events, other.events, strict=False):
        if event.operation != again.operation or event.output.shape != again.output.shape:
            return
        if event.places and event.operation != OUTPUT and event.output.is_floating_point():
            yield event, again


def record_cached(subject: Subject, case: Case) -> Recording:
    """Records the cached path of `subject` on `case`, up to a step that raises."""
    with record(WatchedSubject(subject)) as recording:

        def begin(step: Step) -> None:
            recording.step = step.index

        with suppress(CachedPathRaised, Refused):
            run_cached(subject, case, begin=begin)
    return recording


def record_whole(subject: Subject, rows: Rows) -> Recording:
    """Records an uncached run of `subject` over `rows`."""
    with record(WatchedSubject(subject)) as recording:
        recording.step = 0
        run_uncached(subject, rows)
    return recording
