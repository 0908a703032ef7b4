"""What a wrong state is, where it is the right state of something else.

Of another position, another row or another layer, or the right one rounded, scaled, rotated: each
is tried on the numbers themselves.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor

# The coarsest first: what it can hold, the others can hold too.
_COARSER = (torch.bfloat16, torch.float16, torch.float32)
_ALIKE = 1e-9


@dataclass(frozen=True)
class WrongState:
    """The state that differs first, float64: what was `found` [rows, places, features] at the
    `positions` of each place, and what is `right` [rows, positions, features] at all positions of
    the same rows; `others` are the right ones of other layers, by the layer's number. `found` and
    `right` are None where they have no axis of positions."""

    found: Tensor | None = None
    right: Tensor | None = None
    positions: tuple[int, ...] = ()
    others: Mapping[int, Tensor] = field(default_factory=dict)


@dataclass(frozen=True)
class _Wrong:
    """What is wrong: `found` and `expected` [rows, places, features], `wrong` [rows, places] which
    of them differ, `right` [rows, positions, features] all that is right, in float64; `row` and
    `place` are the first that differs."""

    found: Tensor
    right: Tensor
    expected: Tensor
    wrong: Tensor
    state: WrongState

    @property
    def mine(self) -> Tensor:
        """The wrong ones [places, features]."""
        return self.found[self.wrong]

    @property
    def theirs(self) -> Tensor:
        """What these should be [places, features]."""
        return self.expected[self.wrong]

    @property
    def row(self) -> int:
        return int(self.wrong.any(1).nonzero()[0])

    @property
    def place(self) -> int:
        return int(self.wrong[self.row].nonzero()[0])


def find_lookalike(state: WrongState) -> tuple[str, str] | None:
    """What the wrong state is instead of the right one: the cause, and what shows it. None if it is
    like nothing that is tried."""
    if state.found is None or state.right is None or not state.positions:
        return None
    found, right = state.found.double(), state.right.double()
    if found.shape[0] != right.shape[0] or found.shape[2] != right.shape[2]:
        return None
    expected = right[:, list(state.positions)]
    scale = expected.abs().amax() if expected.numel() else 0.0
    wrong = (found - expected).abs().amax(-1) > _ALIKE * scale
    if not bool(wrong.any()):
        return None
    case = _Wrong(found, right, expected, wrong, state)
    return next(filter(None, (trial(case) for trial in _TRIALS)), None)


def _alike(one: Tensor, other: Tensor) -> bool:
    """Whether two states are the same, and are no trivial ones."""
    scale = float(other.abs().max()) if other.numel() else 0.0
    return scale > 0 and float((one - other).abs().max()) <= _ALIKE * scale


def _index(case: _Wrong) -> tuple[str, str] | None:
    """Numbers of places, in place of states."""
    if case.found.shape[2] != 1 or not torch.equal(case.right, case.right.round()):
        return None
    mine, theirs = (float(v[case.row, case.place]) for v in (case.found, case.expected))
    return "position index", f"it is {mine:g}, and should be {theirs:g}"


def _rounded(case: _Wrong) -> tuple[str, str] | None:
    mine, theirs = case.mine, case.theirs
    for dtype in _COARSER:
        exact = torch.equal(mine.to(dtype).double(), mine)
        near = (mine - theirs).abs() <= 2 * torch.finfo(dtype).eps * theirs.abs().amax()
        if exact and bool(near.all()) and not torch.equal(theirs.to(dtype).double(), theirs):
            return "dtype", f"the values are those of {str(dtype).removeprefix('torch.')}"
    return None


def _other_layer(case: _Wrong) -> tuple[str, str] | None:
    for number, other in case.state.others.items():
        if other.shape == case.right.shape:
            theirs = other.double()[:, list(case.state.positions)][case.wrong]
            if _alike(case.mine, theirs) and not _alike(case.theirs, theirs):
                return "layer index", f"it is what layer {number + 1} should have"
    return None


def _other_row(case: _Wrong) -> tuple[str, str] | None:
    row = case.row
    wrong = case.wrong[row]
    for other in range(case.found.shape[0]):
        if other != row and _alike(case.found[row][wrong], case.expected[other][wrong]):
            return "batch row", f"row {row} has what row {other} should have"
    return None


def _other_position(case: _Wrong) -> tuple[str, str] | None:
    position = case.state.positions[case.place]
    for other in range(case.right.shape[1]):
        if other != position and _alike(
            case.found[case.row, case.place], case.right[case.row, other]
        ):
            return "append slot", f"position {position} has what position {other} should have"
    return None


def _nothing(case: _Wrong) -> tuple[str, str] | None:
    return None if bool(case.mine.any()) else ("append slot", "nothing was written there")


def _scaled(case: _Wrong) -> tuple[str, str] | None:
    mine, theirs = case.mine.flatten(), case.theirs.flatten()
    square = float(theirs @ theirs)
    if mine.numel() < 3 or square == 0:
        return None
    factor = float(mine @ theirs) / square
    if factor and _alike(mine, factor * theirs):
        return "scale", f"it is {factor:.4g} times what it should be"
    return None


def _heads(case: _Wrong) -> tuple[str, str] | None:
    """The same values in another order of equal blocks."""
    width = case.mine.shape[-1]
    for heads in (2, 4, 8, 16, 32):
        if width % heads or width == heads:
            continue
        mine, theirs = (v.reshape(v.shape[0], heads, -1) for v in (case.mine, case.theirs))
        if all(
            any(_alike(mine[:, head], theirs[:, other]) for other in range(heads))
            for head in range(heads)
        ):
            return "head grouping", "its heads hold what other heads should hold"
    return None


def _rotated(case: _Wrong) -> tuple[str, str] | None:
    """The same lengths, in other directions."""
    mine, theirs = (values.square().sum(-1) for values in (case.mine, case.theirs))
    if case.mine.shape[-1] > 3 and _alike(mine, theirs):
        return "rope scaling", "it is as long as it should be, and rotated otherwise"
    return None


_TRIALS = (
    _index,
    _rounded,
    _other_layer,
    _other_row,
    _other_position,
    _nothing,
    _scaled,
    _heads,
    _rotated,
)


def to_table(found: Tensor, axis: int, rows: int | None) -> Tensor:
    """A state as [rows, places, features], with `axis` the places and `rows` the axis of rows."""
    values: Tensor = found.movedim(axis, 0)
    if rows is None or rows == axis:
        return values.reshape(1, values.shape[0], -1)
    rows = rows + 1 if rows < axis else rows
    return (
        values.movedim(rows, 0).flatten(2)
        if values.dim() > 2
        else values.movedim(rows, 0)[..., None]
    )
