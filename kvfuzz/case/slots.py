"""Follows the slots of one cache through the entries of a schedule, and checks each entry."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from kvfuzz.case.schedule import (
    SIDES,
    Crop,
    Entry,
    Join,
    Operation,
    Padded,
    Ragged,
    Reorder,
    Reset,
    Rollback,
    Tree,
    entry_text,
)
from kvfuzz.errors import InvalidCase

Slots = tuple[tuple[int | None, ...], ...]
"""The contents of a cache, [rows][slots]: a token, or None for padding, for what this row did not
get of a ragged call or keep of a tree, for what a rollback of this row alone has dropped, and where
a longer row was joined. No rows at all: another cache has taken them."""


def feed(
    before: Slots,
    fed: Sequence[tuple[int, ...]],
    operation: Operation | None,
    given: tuple[str, ...],
) -> Slots:
    """Returns the slots of the current cache, with those `before`, after the tokens `fed`."""
    new: list[tuple[int | None, ...]] = list(fed[: len(before)])
    nothing: tuple[None, ...] = (None,)
    if isinstance(operation, Ragged):
        lengths = operation.lengths
        require("mask" not in given, operation, "no mask in 'given'")
        require(len(lengths) == len(before), operation, f"a length for each of {len(before)} rows")
        require(all(n >= 0 for n in lengths), operation, "lengths of 0 or more")
        new = [row[:n] + nothing * (len(row) - n) for row, n in zip(new, lengths, strict=True)]
    if isinstance(operation, Tree):
        _check_tree(operation, before, given)
        branches = [set(operation.branch(candidate)) for candidate in operation.kept]
        new = [
            tuple(token if number in branch else None for number, token in enumerate(row))
            for row, branch in zip(new, branches, strict=True)
        ]
    if isinstance(operation, Padded):
        size, side, pads = operation.size, operation.side, operation.pads
        require(side in SIDES, operation, f"{' or '.join(SIDES)} as its side")
        require(len(pads) == len(before), operation, f"a number of pads for {len(before)} rows")
        require(all(0 <= n < size for n in pads), operation, f"0 to {size - 1} pads in each row")
        if any(pads) and "mask" not in given:
            raise InvalidCase("padding needs a mask in every call: add 'mask' to 'given'")
        new = [
            nothing * n + row[n:] if side == "left" else row[: size - n] + nothing * n
            for row, n in zip(new, pads, strict=True)
        ]
    return tuple(old + row for old, row in zip(before, new, strict=True))


def _check_tree(tree: Tree, before: Slots, given: tuple[str, ...]) -> None:
    require("mask" not in given, tree, "no mask in 'given'")
    held = all(any(token is not None for token in row) for row in before)
    require(held, tree, "a cache that holds something in every row")
    earlier = all(-1 <= parent < n for n, parent in enumerate(tree.parents))
    require(earlier, tree, "parents of -1, or of an earlier candidate")
    require(len(tree.kept) == len(before), tree, f"a candidate to keep for {len(before)} rows")
    known = all(-1 <= candidate < tree.size for candidate in tree.kept)
    require(known, tree, f"candidates to keep from -1 to {tree.size - 1}")


def is_alive(caches: list[Slots], number: int) -> bool:
    """Whether there is a cache of this `number`, and no join has ended it."""
    return 0 <= number < len(caches) and caches[number] != ()


def join(before: Slots, other: Slots, entry: Join, most_rows: int, given: tuple[str, ...]) -> Slots:
    """Returns the slots of the rows `before` and of those of the `other` cache after them."""
    require("mask" not in given, entry, "no mask in 'given'")
    require(bool(before[0] and other[0]), entry, "two caches that hold something")
    fits = len(before) + len(other) <= most_rows
    require(fits, entry, f"at most {most_rows} rows together")
    slots = max(len(before[0]), len(other[0]))
    return tuple((*row, *(None,) * (slots - len(row))) for row in (*before, *other))


def operate(before: Slots, entry: Entry, most_rows: int, given: tuple[str, ...]) -> Slots:
    """Returns the slots of the current cache after an operation that feeds nothing. A cache has at
    most `most_rows` rows."""
    require(bool(before and before[0]), entry, "a cache that holds something to act on")
    match entry:
        case Crop(count):
            require(count >= 1, entry, "a count of 1 or more")
            even = "mask" in given or not any(None in row for row in before)
            require(even, entry, "rows that nothing has made unequal: roll them back")
            return tuple(row[: max(0, len(row) - count)] for row in before)
        case Rollback(counts):
            require("mask" not in given, entry, "no mask in 'given'")
            require(len(counts) == len(before), entry, f"a count for each of {len(before)} rows")
            fits = all(count >= 0 for count in counts) and any(counts)
            require(fits, entry, "counts of 0 or more, and one above 0")
            return _roll_back(before, counts)
        case Reorder(rows):
            require(1 <= len(rows) <= most_rows, entry, f"1 to {most_rows} rows")
            fits = all(0 <= row < len(before) for row in rows)
            require(fits, entry, f"rows from 0 to {len(before) - 1}")
            return tuple(before[row] for row in rows)
        case Reset():
            return ((),) * len(before)
        case _:
            return before


def _roll_back(before: Slots, counts: tuple[int, ...]) -> Slots:
    """Returns `before` without the last tokens of each row, and without slots that are empty in all
    rows after the last token."""
    rows: list[tuple[int | None, ...]] = []
    for row, count in zip(before, counts, strict=True):
        text = [slot for slot, token in enumerate(row) if token is not None]
        dropped = {*text[max(0, len(text) - count) :]}
        rows.append(tuple(None if slot in dropped else token for slot, token in enumerate(row)))
    return without_empty_end(rows)


def without_empty_end(rows: Sequence[tuple[int | None, ...]]) -> Slots:
    """Returns `rows` without the slots at the end that are empty in all of them."""
    longest = max(
        (n for row in rows for n, token in enumerate(row, 1) if token is not None), default=0
    )
    return tuple(row[:longest] for row in rows)


def require(holds: bool, entry: Any, wanted: str) -> None:
    if not holds:
        raise InvalidCase(f"{entry_text(entry)!r} in the schedule should have {wanted}")
