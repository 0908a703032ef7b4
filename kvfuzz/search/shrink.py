"""Shrinks a failing case further than Hypothesis does.

Hypothesis shrinks a program within its focus: a program about `reorder` keeps a reorder. `simplify`
removes whatever the failure does not need.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from contextlib import suppress
from dataclasses import replace
from itertools import pairwise

from kvfuzz.case.case import Case
from kvfuzz.case.schedule import Padded
from kvfuzz.errors import InvalidCase
from kvfuzz.search.programs import has_required_args


def simplify(
    case: Case, fails: Callable[[Case], bool], offers: Collection[str] = frozenset()
) -> Case:
    """Returns `case` reduced greedily to one that still `fails` and cannot be reduced further.

    Only tries cases that give a subject with these `offers` all the arguments that it requires.
    """
    reduced = True
    while reduced:
        reduced = False
        for candidate in _reductions(case):
            if has_required_args(candidate, offers) and fails(candidate):
                case, reduced = candidate, True
                break
    return case


def _reductions(case: Case) -> Iterator[Case]:
    """Yields slightly smaller versions of `case`: without one schedule entry or two neighbours,
    without the padding of one entry, with fewer tokens in one, with two calls merged, without one
    argument. Skips versions that are not valid cases."""
    entries = case.schedule
    for length in (2, 1):
        for index in range(len(entries) - length + 1):
            with suppress(InvalidCase):
                yield _remove_entries(case, index, index + length)
    for index, entry in enumerate(entries):
        if isinstance(entry, Padded):
            plain = replace(case, schedule=(*entries[:index], entry.size, *entries[index + 1 :]))
            yield plain
            # Rows that differed only in their padding are now equal, which may hide the failure.
            yield _distinguish_rows(plain, index)
        elif isinstance(entry, int):
            for size in sorted({1, entry // 2, entry - 1} - {0, entry}):
                for dropped in (entry - size, 0):  # keep the last tokens, or the first
                    with suppress(InvalidCase):
                        yield _shorten_entry(case, index, size, dropped)
    for index, (entry, after) in enumerate(pairwise(entries)):
        # In a plain schedule the split into calls is what the case tests, so it is kept.
        if not case.is_plain and isinstance(entry, int) and isinstance(after, int):
            yield replace(case, schedule=(*entries[:index], entry + after, *entries[index + 2 :]))
    for word in case.given:
        with suppress(InvalidCase):
            yield replace(case, given=tuple(other for other in case.given if other != word))


def _distinguish_rows(case: Case, index: int) -> Case:
    """Gives each row a different token in the first column of entry `index`."""
    column = list(case.steps())[index].start
    tokens = tuple(
        (*row[:column], number, *row[column + 1 :]) for number, row in enumerate(case.tokens)
    )
    return replace(case, tokens=tokens)


def _shorten_entry(case: Case, index: int, size: int, dropped: int) -> Case:
    """Keeps only `size` tokens of entry `index`, after its first `dropped` ones."""
    step = list(case.steps())[index]
    start = step.start + dropped
    tokens = tuple(
        (*row[: step.start], *row[start : start + size], *row[step.stop :]) for row in case.tokens
    )
    return replace(
        case, tokens=tokens, schedule=(*case.schedule[:index], size, *case.schedule[index + 1 :])
    )


def _remove_entries(case: Case, start: int, stop: int) -> Case:
    """Removes the entries `start` to `stop` from the schedule, and the columns that they fed."""
    steps = list(case.steps())
    first, last = steps[start].start, steps[stop - 1].stop
    tokens = tuple((*row[:first], *row[last:]) for row in case.tokens)
    return replace(case, tokens=tokens, schedule=(*case.schedule[:start], *case.schedule[stop:]))
