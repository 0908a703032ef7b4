"""Aligns two states of one operation: which entries of each belong to which token.

A reference run takes `length` tokens from the first one on. The examined call takes `fed` tokens;
after it the cache holds `slots` tokens in all. How the shape of a state differs between the two
tells its axes: one of size `length` there and `fed` here holds the *new* tokens, one of size
`length` there and `slots` here holds *all* of them, like a cache or the columns of a mask. Every
other axis must have the same size in both.

`align` cuts both states into corresponding pieces. The cuts depend only on the shapes, so they are
planned once for each pair of shapes.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

_Shape = tuple[int, ...]
_Plan = tuple[tuple[_Shape, _Shape] | None, tuple["Cut", ...] | None]
# The entries along an axis: a first one and how many follow, or the indices of some.
_Taken = tuple[int, int, int] | tuple[int, tuple[int, ...]]


@dataclass(frozen=True)
class RowTokens:
    """Where the tokens of one row are, or of all rows where these are alike (`row` None): the `new`
    tokens of the call and the `slots` of the cache that hold text, and the position of each."""

    row: int | None
    new: tuple[int, ...]
    new_positions: tuple[int, ...]
    slots: tuple[int, ...]
    slot_positions: tuple[int, ...]

    def of_last(self, left_out: int) -> RowTokens:
        """Returns the same without the first `left_out` places of the call."""
        kept = [n for n, place in enumerate(self.new) if place >= left_out]
        new = tuple(self.new[n] - left_out for n in kept)
        return replace(self, new=new, new_positions=tuple(self.new_positions[n] for n in kept))


@dataclass(frozen=True)
class AxisSizes:
    """The sizes of both runs, and where the tokens of each group of rows are. `cuts` remembers the
    cuts by shapes: most states of a model share a few."""

    rows: int
    length: int
    fed: int
    slots: int
    groups: tuple[RowTokens, ...]
    cuts: dict[tuple[_Shape, _Shape, int | None], _Plan] = field(
        default_factory=dict, repr=False, compare=False
    )

    @property
    def plain(self) -> bool:
        """Whether all rows hold the same positions, without padding."""
        return len(self.groups) == 1 and self.groups[0].row is None

    def of_last(self, count: int) -> AxisSizes:
        """Returns the sizes of a state that holds only the last `count` of the new tokens."""
        if count >= self.fed:
            return self
        groups = tuple(group.of_last(self.fed - count) for group in self.groups)
        return AxisSizes(self.rows, self.length, count, self.slots, groups)


@dataclass(frozen=True, slots=True)
class Piece:
    """Corresponding parts of an examined state and of its reference, of one shape, for one row or
    all (`row` None).

    `axis` is the axis of the new tokens or, without one, of all; `positions` are the positions
    along it. `rows` is the axis of rows, None where the shape does not tell. `new` and `every` say
    whether there is an axis of new tokens, and one of all; `last` is this one if it
    holds only the last tokens, as that of a window does, else None.
    """

    row: int | None
    found: Tensor
    right: Tensor
    positions: tuple[int, ...]
    axis: int | None
    rows: int | None
    new: bool
    every: bool
    last: int | None = None


@dataclass(frozen=True, slots=True)
class Cut:
    """How to take a piece from an examined state (`mine`) and from its reference (`theirs`); the
    rest is as in Piece."""

    row: int | None
    mine: tuple[_Taken, ...]
    theirs: tuple[_Taken, ...]
    positions: tuple[int, ...]
    axis: int | None
    rows: int | None
    new: bool
    every: bool
    last: int | None

    def take(self, found: Tensor, right: Tensor) -> Piece:
        """Returns the piece of these two states."""
        for taken in self.mine:
            found = _entries(found, taken)
        for taken in self.theirs:
            right = _entries(right, taken)
        where = self.positions, self.axis, self.rows
        return Piece(self.row, found, right, *where, self.new, self.every, self.last)


def axis_sizes(positions: Sequence[Sequence[int | None]], fed: int, length: int) -> AxisSizes:
    """Returns the sizes of a call after which the slots of each row hold these `positions` (None
    for padding), the last `fed` of them new, against a reference of `length` tokens."""
    slots = len(positions[0])
    first = list(positions[0])
    if all(list(row) == first for row in positions) and None not in first:
        groups = [_row_tokens(None, first, fed)]
    else:
        groups = [_row_tokens(number, row, fed) for number, row in enumerate(positions)]
    return AxisSizes(len(positions), length, fed, slots, tuple(groups))


def _row_tokens(number: int | None, positions: Sequence[int | None], fed: int) -> RowTokens:
    old = len(positions) - fed
    slots = [slot for slot, position in enumerate(positions) if position is not None]
    held = [position for position in positions if position is not None]
    new = [slot - old for slot in slots if slot >= old]
    new_positions = held[len(held) - len(new) :]
    return RowTokens(number, tuple(new), tuple(new_positions), tuple(slots), tuple(held))


def align(
    found: Tensor, right: Tensor, sizes: AxisSizes, along: int | None = None
) -> list[Piece] | None:
    """Returns the corresponding pieces of the state `found` in the examined call and of `right` in
    the reference run; None where they do not correspond. `along` is the axis of tokens where that
    is known from elsewhere, -1 if there is none."""
    shapes = found.shape, right.shape, along
    if shapes not in sizes.cuts:
        sizes.cuts[shapes] = _plan(*shapes, sizes)
    unfolded, cuts = sizes.cuts[shapes]
    if unfolded is not None:
        found, right = found.reshape(unfolded[0]), right.reshape(unfolded[1])
    return None if cuts is None else [cut.take(found, right) for cut in cuts]


def _plan(found: _Shape, right: _Shape, along: int | None, sizes: AxisSizes) -> _Plan:
    """Returns the shapes to give both states first (None for their own) and the cuts; None in place
    of the cuts where states of these shapes do not correspond."""
    unfolded = _unfold(found, right, sizes)
    if unfolded is not None:
        (found, right), along = unfolded, None
    roles = _roles(found, right, sizes, along) if len(found) == len(right) else None
    if roles is None:
        return unfolded, None
    rows = _rows_axis(found, right, sizes)
    # Without an axis of tokens it is a state at the end of the run. Padded rows end at different
    # times, so it cannot be compared.
    if not sizes.plain and (rows is None or not any(roles)):
        return unfolded, None
    return unfolded, tuple(_plan_cut(found, right, roles, group, rows) for group in sizes.groups)


def _unfold(found: _Shape, right: _Shape, sizes: AxisSizes) -> tuple[_Shape, _Shape] | None:
    """Returns the shapes with separate axes for rows and tokens, where the model has flattened them
    into one; None where it has not."""
    if sizes.rows == 1 or len(found) != len(right):
        return None
    for axis, (mine, theirs) in enumerate(zip(found, right, strict=True)):
        if mine == theirs:
            continue
        if mine == sizes.rows * sizes.fed and theirs == sizes.rows * sizes.length:
            return (
                (*found[:axis], sizes.rows, sizes.fed, *found[axis + 1 :]),
                (*right[:axis], sizes.rows, sizes.length, *right[axis + 1 :]),
            )
        return None
    return None


def _roles(
    found: Sequence[int], right: Sequence[int], sizes: AxisSizes, along: int | None
) -> list[str] | None:
    """Returns for each axis `new`, `all`, `last` (the part of all that a window keeps) or '' for
    neither; None where the shapes do not correspond."""
    roles = []
    for mine, theirs in zip(found, right, strict=True):
        if theirs == sizes.length and mine == sizes.fed and mine != theirs:
            role = "new"
        elif theirs == sizes.length and mine == sizes.slots and mine != theirs:
            role = "all"
        elif mine == theirs:
            role = ""
        elif theirs == sizes.length and sizes.fed < mine < sizes.slots:
            role = "last"
        else:
            return None
        roles.append(role)
    if not any(roles) and sizes.length == sizes.slots:
        # Both runs have the same size here, so any axis of that size may hold the tokens: take the
        # first after the rows. Slot i holds position i, so a wrong guess only misnames positions.
        sized = [axis for axis, size in enumerate(found) if size == sizes.slots and not roles[axis]]
        if along is not None:
            sized = [axis for axis in sized if axis == along]
        if sized:
            after = [axis for axis in sized if axis > 0]
            roles[(after or sized)[0]] = "new" if sizes.fed == sizes.slots else "all"
    return roles


def _rows_axis(found: Sequence[int], right: Sequence[int], sizes: AxisSizes) -> int | None:
    same = [
        axis
        for axis, (mine, theirs) in enumerate(zip(found, right, strict=True))
        if mine == theirs == sizes.rows
    ]
    return same[0] if same else None


def _plan_cut(
    found: Sequence[int],
    right: Sequence[int],
    roles: Sequence[str],
    group: RowTokens,
    rows: int | None,
) -> Cut:
    """Returns how to cut the rows of `group` from states of these shapes, whose axes have these
    `roles`."""
    mine: list[_Taken] = []
    theirs: list[_Taken] = []
    if group.row is not None and rows is not None:
        mine.append((rows, group.row, 1))
        theirs.append((rows, group.row, 1))
    held = list(found)
    for axis, role in enumerate(roles):
        if not role:
            continue
        own, other = _tokens_along(role, group, found[axis])
        held[axis] = len(own)
        mine += _taken(axis, own, found[axis])
        theirs += _taken(axis, other, right[axis])
    new = next((n for n, role in enumerate(roles) if role == "new"), None)
    every = next((n for n, role in enumerate(roles) if role in ("all", "last")), None)
    along = every if new is None else new
    positions: tuple[int, ...] = ()
    if along is not None:
        all_positions = group.new_positions if new is not None else group.slot_positions
        positions = all_positions[len(all_positions) - held[along] :]
    return Cut(
        group.row,
        tuple(mine),
        tuple(theirs),
        positions,
        along,
        rows,
        new is not None,
        every is not None,
        next((n for n, role in enumerate(roles) if role == "last"), None),
    )


def _tokens_along(
    role: str, group: RowTokens, size: int
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Returns which entries of an axis with that `role` and `size` hold text, and their
    positions."""
    if role == "new":
        return group.new, group.new_positions
    if role == "all" or not group.slots:
        return group.slots, group.slot_positions
    # A window has dropped the first slots: what is left begins at slot `first`.
    first = group.slots[-1] + 1 - size
    kept = [at for at, slot in enumerate(group.slots) if slot >= first]
    return (
        tuple(group.slots[at] - first for at in kept),
        tuple(group.slot_positions[at] for at in kept),
    )


def _taken(axis: int, indices: tuple[int, ...], size: int) -> tuple[_Taken, ...]:
    """Returns how to take these `indices` of an `axis` of that `size`: nothing to do where they are
    all in order, and a view, which copies nothing, where they are consecutive."""
    count = len(indices)
    if count and indices[-1] - indices[0] == count - 1:
        return ((axis, indices[0], count),) if count != size else ()
    return ((axis, indices),)


def _entries(values: Tensor, taken: _Taken) -> Tensor:
    if len(taken) == 3:
        return values.narrow(*taken)
    axis, indices = taken
    return values.index_select(axis, torch.tensor(indices, dtype=torch.int64, device=values.device))


def _take(values: Tensor, axis: int, indices: tuple[int, ...]) -> Tensor:
    """Returns the entries of `values` at `indices` along `axis`."""
    for taken in _taken(axis, indices, values.shape[axis]):
        values = _entries(values, taken)
    return values


def align_by_slot(piece: Piece, sizes: AxisSizes) -> Iterator[Piece]:
    """Yields `piece` of a padded row with each axis in turn taken as one of preallocated slots.

    Such an axis, like the columns of a mask over a static cache, has one size in both runs, so its
    shape does not show that padding moves what it holds.
    """
    group = next((group for group in sizes.groups if group.row == piece.row), None)
    if group is None or group.slots == group.slot_positions:
        return
    for axis, size in enumerate(piece.found.shape):
        same = piece.right.shape[axis] == size >= max(sizes.slots, sizes.length)
        if same and axis not in (piece.axis, piece.rows):
            yield replace(
                piece,
                found=_take(piece.found, axis, group.slots),
                right=_take(piece.right, axis, group.slot_positions),
            )


def align_by_content(piece: Piece, allowed: float) -> Piece | None:
    """Returns `piece` with its slots in the order of the reference; None if they do not hold the
    same.

    A ring that keeps the last tokens writes each where the oldest was: its slots are no positions.
    Each slot counts as the one of the reference that holds the same.
    """
    if piece.last is None or piece.found.shape != piece.right.shape or not piece.found.numel():
        return None
    mine, theirs = (
        v.movedim(piece.last, 0).reshape(v.shape[piece.last], -1)
        for v in (piece.found, piece.right)
    )
    alike = torch.cdist(theirs.double()[None], mine.double()[None], p=torch.inf)[0] <= allowed
    order: list[int] = []
    for row in alike.tolist():  # the same token may be in several slots: each is taken once
        order += [n for n, same in enumerate(row) if same and n not in order][:1]
    if len(order) != len(theirs):
        return None
    return replace(piece, found=_take(piece.found, piece.last, tuple(order)))


def is_ambiguous(found: Sequence[int], right: Sequence[int], sizes: AxisSizes) -> bool:
    """Whether the shapes of a state do not tell which of its axes holds the tokens."""
    same = tuple(found) == tuple(right) and sizes.length == sizes.slots
    return same and sizes.plain and sizes.slots in found
