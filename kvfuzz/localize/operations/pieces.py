"""The parts of two states that correspond, and how they are taken from these."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Rows:
    """One row of the examined call, or all of them where they are alike (`row` None): the `new`
    tokens and `slots` of it that hold text, and the reference's positions of both."""

    row: int | None
    new: tuple[int, ...]
    new_positions: tuple[int, ...]
    slots: tuple[int, ...]
    slot_positions: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Piece:
    """Corresponding parts of an examined state and of its reference, of one shape, for one row or
    all (`row` None). `axis` is the axis of the new tokens or, if there is none, of all; `positions`
    are those that it holds. `rows` is the axis of rows, None where it cannot be told. `new` and
    `every` say whether an axis of new tokens and one of all are there."""

    row: int | None
    found: Tensor
    right: Tensor
    positions: tuple[int, ...]
    axis: int | None
    rows: int | None
    new: bool
    every: bool


# The entries along an axis: from a first one on so many, or those at some indices.
_Taken = tuple[int, int, int] | tuple[int, tuple[int, ...]]


@dataclass(frozen=True, slots=True)
class Cut:
    """How a piece is taken from an examined state (`mine`) and from its reference (`theirs`)."""

    row: int | None
    mine: tuple[_Taken, ...]
    theirs: tuple[_Taken, ...]
    positions: tuple[int, ...]
    axis: int | None
    rows: int | None
    new: bool
    every: bool

    def of(self, found: Tensor, right: Tensor) -> Piece:
        """The piece of these two states."""
        for taken in self.mine:
            found = _entries(found, taken)
        for taken in self.theirs:
            right = _entries(right, taken)
        return Piece(
            self.row, found, right, self.positions, self.axis, self.rows, self.new, self.every
        )


def cut_of(
    found: Sequence[int], right: Sequence[int], roles: Sequence[str], group: Rows, rows: int | None
) -> Cut:
    """How the rows of `group` are cut from states of the shapes `found` and `right`, whose axes
    have these `roles`."""
    mine: list[_Taken] = []
    theirs: list[_Taken] = []
    if group.row is not None and rows is not None:
        mine.append((rows, group.row, 1))
        theirs.append((rows, group.row, 1))
    held = list(found)
    for axis, role in enumerate(roles):
        if not role:
            continue
        own, other = (
            (group.new, group.new_positions)
            if role == "new"
            else (group.slots, group.slot_positions)
        )
        if role == "last":
            first = group.slots[-1] + 1 - found[axis] if group.slots else 0
            pairs = [(m - first, t) for m, t in zip(own, other, strict=True) if m >= first]
            own, other = tuple(m for m, _ in pairs), tuple(t for _, t in pairs)
        held[axis] = len(own)
        mine += _taken(axis, own, found[axis])
        theirs += _taken(axis, other, right[axis])
    new = next((n for n, role in enumerate(roles) if role == "new"), None)
    every = next((n for n, role in enumerate(roles) if role in ("all", "last")), None)
    along = every if new is None else new
    positions: tuple[int, ...] = ()
    if along is not None:
        places = group.new_positions if new is not None else group.slot_positions
        positions = places[len(places) - held[along] :]
    return Cut(
        group.row,
        tuple(mine),
        tuple(theirs),
        positions,
        along,
        rows,
        new is not None,
        every is not None,
    )


def _taken(axis: int, places: tuple[int, ...], size: int) -> tuple[_Taken, ...]:
    """What takes the entries at `places` along an `axis` of that `size`: nothing where these are
    all of them in order, and a view where they follow each other."""
    count = len(places)
    if count and places[-1] - places[0] == count - 1:
        return ((axis, places[0], count),) if count != size else ()
    return ((axis, places),)


def _entries(values: Tensor, taken: _Taken) -> Tensor:
    if len(taken) == 3:
        return values.narrow(*taken)
    axis, places = taken
    return values.index_select(axis, torch.tensor(places, dtype=torch.int64, device=values.device))


def at(values: Tensor, axis: int, places: tuple[int, ...]) -> Tensor:
    """The entries of `values` at `places` along `axis`."""
    for taken in _taken(axis, places, values.shape[axis]):
        values = _entries(values, taken)
    return values
