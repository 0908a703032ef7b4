"""Which entries of a state are about which tokens, told by how its shape differs between two runs.

A reference run takes `length` tokens from the first on. An examined call takes `fed` tokens after
those that the cache holds, which then holds `slots`. An axis whose size is the length in the one
and the number of fed tokens in the other holds the *new* tokens; one of the length and the slots
holds *all* of them, as a cache and the columns of a mask do. Every other axis must have one size.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

from torch import Tensor

from kvfuzz.localize.operations.pieces import Cut, Piece, Rows, at, cut_of

_Shape = tuple[int, ...]
_Cuts = tuple[tuple[_Shape, _Shape] | None, tuple[Cut, ...] | None]


@dataclass(frozen=True)
class Frame:
    """The sizes of both runs. `groups` says what is where in each row. `cuts` remembers how states
    of these shapes are cut into pieces, since most states of a model share a few shapes."""

    rows: int
    length: int
    fed: int
    slots: int
    groups: tuple[Rows, ...]
    cuts: dict[tuple[_Shape, _Shape, int | None], _Cuts] = field(
        default_factory=dict, repr=False, compare=False
    )

    @property
    def plain(self) -> bool:
        """Whether all rows hold the same positions, without padding."""
        return len(self.groups) == 1 and self.groups[0].row is None


def frame_of(positions: Sequence[Sequence[int | None]], fed: int, length: int) -> Frame:
    """The frame of a call after which the slots of each row hold these `positions`, the last `fed`
    of them new; None is padding."""
    slots = len(positions[0])
    first = list(positions[0])
    if all(list(row) == first for row in positions) and None not in first:
        groups = [_row(None, first, fed)]
    else:
        groups = [_row(number, row, fed) for number, row in enumerate(positions)]
    return Frame(len(positions), length, fed, slots, tuple(groups))


def _row(number: int | None, places: Sequence[int | None], fed: int) -> Rows:
    old = len(places) - fed
    slots = [slot for slot, place in enumerate(places) if place is not None]
    at = [place for place in places if place is not None]
    new = [slot - old for slot in slots if slot >= old]
    return Rows(number, tuple(new), tuple(at[len(at) - len(new) :]), tuple(slots), tuple(at))


def aligned(
    found: Tensor, right: Tensor, frame: Frame, along: int | None = None
) -> list[Piece] | None:
    """The corresponding pieces of the state `found` in the examined call and `right` in the
    reference run; None where they do not correspond. `along` is the axis of tokens where that is
    known from elsewhere, -1 if there is none."""
    shapes = found.shape, right.shape, along
    if shapes not in frame.cuts:
        frame.cuts[shapes] = _cuts(*shapes, frame)
    unfolded, cuts = frame.cuts[shapes]
    if unfolded is not None:
        found, right = found.reshape(unfolded[0]), right.reshape(unfolded[1])
    return None if cuts is None else [cut.of(found, right) for cut in cuts]


def _cuts(found: _Shape, right: _Shape, along: int | None, frame: Frame) -> _Cuts:
    """How states of the shapes `found` and `right` are cut: the shapes that they are given before,
    None for their own, and the cuts; None where they do not correspond."""
    unfolded = _unfolded(found, right, frame)
    if unfolded is not None:
        (found, right), along = unfolded, None
    roles = _roles(found, right, frame, along) if len(found) == len(right) else None
    if roles is None:
        return unfolded, None
    rows = _rows_axis(found, right, frame)
    # Without an axis of tokens it is the state at the end, which rows reach at other times.
    if not frame.plain and (rows is None or not any(roles)):
        return unfolded, None
    return unfolded, tuple(cut_of(found, right, roles, group, rows) for group in frame.groups)


def _unfolded(found: _Shape, right: _Shape, frame: Frame) -> tuple[_Shape, _Shape] | None:
    """The shapes with rows and tokens apart, where a model has made one axis of both."""
    if frame.rows == 1 or len(found) != len(right):
        return None
    for axis, (mine, theirs) in enumerate(zip(found, right, strict=True)):
        if mine == theirs:
            continue
        if mine == frame.rows * frame.fed and theirs == frame.rows * frame.length:
            return (
                (*found[:axis], frame.rows, frame.fed, *found[axis + 1 :]),
                (*right[:axis], frame.rows, frame.length, *right[axis + 1 :]),
            )
        return None
    return None


def at_slots(piece: Piece, frame: Frame) -> Iterator[Piece]:
    """`piece` of a padded row with each axis taken as one of slots that has room for more than are
    used, as the columns of a mask over a cache made beforehand: these are as many in both runs, and
    padding moves what they hold."""
    group = next((group for group in frame.groups if group.row == piece.row), None)
    if group is None or group.slots == group.slot_positions:
        return
    for axis, size in enumerate(piece.found.shape):
        same = piece.right.shape[axis] == size >= max(frame.slots, frame.length)
        if same and axis not in (piece.axis, piece.rows):
            yield replace(
                piece,
                found=at(piece.found, axis, group.slots),
                right=at(piece.right, axis, group.slot_positions),
            )


def is_ambiguous(found: Sequence[int], right: Sequence[int], frame: Frame) -> bool:
    """Whether the shapes of a state do not tell which of its axes is that of the tokens."""
    same = tuple(found) == tuple(right) and frame.length == frame.slots
    return same and frame.plain and frame.slots in found


def _roles(
    found: Sequence[int], right: Sequence[int], frame: Frame, along: int | None
) -> list[str] | None:
    """For each axis `new`, `all`, `last` (a window's share of all) or '' for none."""
    roles = []
    for mine, theirs in zip(found, right, strict=True):
        if theirs == frame.length and mine == frame.fed and mine != theirs:
            role = "new"
        elif theirs == frame.length and mine == frame.slots and mine != theirs:
            role = "all"
        elif mine == theirs:
            role = ""
        elif theirs == frame.length and frame.fed < mine < frame.slots:
            role = "last"
        else:
            return None
        roles.append(role)
    if not any(roles) and frame.length == frame.slots:
        # An axis of that size in both: the first after the rows is taken to be that of the tokens.
        # Here slot i holds position i, so that this decides no more than how places are called.
        sized = [axis for axis, size in enumerate(found) if size == frame.slots and not roles[axis]]
        if along is not None:
            sized = [axis for axis in sized if axis == along]
        if sized:
            after = [axis for axis in sized if axis > 0]
            roles[(after or sized)[0]] = "new" if frame.fed == frame.slots else "all"
    return roles


def _rows_axis(found: Sequence[int], right: Sequence[int], frame: Frame) -> int | None:
    same = [
        axis
        for axis, (mine, theirs) in enumerate(zip(found, right, strict=True))
        if mine == theirs == frame.rows
    ]
    return same[0] if same else None
