"""Recognises a wrong state that is the right state of something else.

It may be that of another position, another row or another layer, or the right one rounded, scaled
or rotated. Each trial compares the numbers.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor

# The coarsest first: the finer ones can hold its values too.
_COARSER = (torch.bfloat16, torch.float16, torch.float32)
_ALIKE = 1e-9


@dataclass(frozen=True)
class WrongState:
    """The state that differs first, in float64: what was `found` [rows, places, features], whose
    places are these `positions`, and what is `right` [rows, positions, features] at all positions
    of the same rows. `others` are the right states of other layers, by the layer's number. `found`
    and `right` are None where they have no axis of positions."""

    found: Tensor | None = None
    right: Tensor | None = None
    positions: tuple[int, ...] = ()
    others: Mapping[int, Tensor] = field(default_factory=dict)


@dataclass(frozen=True)
class _Trial:
    """The input of each trial, in float64: `found` and `expected` [rows, places, features], `wrong`
    [rows, places] where they differ, and `right` [rows, positions, features]. `row` and `place` are
    the first that differs."""

    found: Tensor
    right: Tensor
    expected: Tensor
    wrong: Tensor
    state: WrongState

    @property
    def mine(self) -> Tensor:
        """The wrong entries [places, features]."""
        return self.found[self.wrong]

    @property
    def theirs(self) -> Tensor:
        """The entries that they should be [places, features]."""
        return self.expected[self.wrong]

    @property
    def row(self) -> int:
        return int(self.wrong.any(1).nonzero()[0])

    @property
    def place(self) -> int:
        return int(self.wrong[self.row].nonzero()[0])


def find_lookalike(state: WrongState) -> tuple[str, str] | None:
    """Returns the cause that the wrong state's numbers show, and how they do; None if no trial
    fits."""
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
    trial = _Trial(found, right, expected, wrong, state)
    return next(filter(None, (attempt(trial) for attempt in _TRIALS)), None)


def _alike(one: Tensor, other: Tensor) -> bool:
    """Whether two states are the same up to rounding, and not all zero."""
    scale = float(other.abs().max()) if other.numel() else 0.0
    return scale > 0 and float((one - other).abs().max()) <= _ALIKE * scale


def _index(trial: _Trial) -> tuple[str, str] | None:
    """The state holds position numbers."""
    if trial.found.shape[2] != 1 or not torch.equal(trial.right, trial.right.round()):
        return None
    mine, theirs = (float(v[trial.row, trial.place]) for v in (trial.found, trial.expected))
    return "position index", f"it is {mine:g}, and should be {theirs:g}"


def _rounded(trial: _Trial) -> tuple[str, str] | None:
    mine, theirs = trial.mine, trial.theirs
    for dtype in _COARSER:
        exact = torch.equal(mine.to(dtype).double(), mine)
        near = (mine - theirs).abs() <= 2 * torch.finfo(dtype).eps * theirs.abs().amax()
        if exact and bool(near.all()) and not torch.equal(theirs.to(dtype).double(), theirs):
            return "dtype", f"the values are those of {str(dtype).removeprefix('torch.')}"
    return None


def _other_layer(trial: _Trial) -> tuple[str, str] | None:
    for number, other in trial.state.others.items():
        if other.shape == trial.right.shape:
            theirs = other.double()[:, list(trial.state.positions)][trial.wrong]
            if _alike(trial.mine, theirs) and not _alike(trial.theirs, theirs):
                return "layer index", f"it is what layer {number + 1} should have"
    return None


def _other_row(trial: _Trial) -> tuple[str, str] | None:
    row = trial.row
    wrong = trial.wrong[row]
    for other in range(trial.found.shape[0]):
        if other != row and _alike(trial.found[row][wrong], trial.expected[other][wrong]):
            return "batch row", f"row {row} has what row {other} should have"
    return None


def _other_position(trial: _Trial) -> tuple[str, str] | None:
    position = trial.state.positions[trial.place]
    for other in range(trial.right.shape[1]):
        if other != position and _alike(
            trial.found[trial.row, trial.place], trial.right[trial.row, other]
        ):
            return "append slot", f"position {position} has what position {other} should have"
    return None


def _nothing(trial: _Trial) -> tuple[str, str] | None:
    return None if bool(trial.mine.any()) else ("append slot", "nothing was written there")


def _scaled(trial: _Trial) -> tuple[str, str] | None:
    mine, theirs = trial.mine.flatten(), trial.theirs.flatten()
    square = float(theirs @ theirs)
    if mine.numel() < 3 or square == 0:
        return None
    factor = float(mine @ theirs) / square
    if factor and _alike(mine, factor * theirs):
        return "scale", f"it is {few_digits(factor)} times what it should be"
    return None


def few_digits(factor: float) -> str:
    """Returns a factor in as few digits as tell it from another one, at least four: 1.00001 is not
    1."""
    texts = (f"{factor:.{digits}g}" for digits in range(4, 13))
    return next((text for text in texts if math.isclose(float(text), factor)), repr(factor))


def _heads(trial: _Trial) -> tuple[str, str] | None:
    """It has the same values, with blocks of equal size in another order."""
    width = trial.mine.shape[-1]
    for heads in (2, 4, 8, 16, 32):
        if width % heads or width == heads:
            continue
        mine, theirs = (v.reshape(v.shape[0], heads, -1) for v in (trial.mine, trial.theirs))
        if all(
            any(_alike(mine[:, head], theirs[:, other]) for other in range(heads))
            for head in range(heads)
        ):
            return "head grouping", "its heads hold what other heads should hold"
    return None


def _rotated(trial: _Trial) -> tuple[str, str] | None:
    """Its vectors have the same lengths, in other directions."""
    mine, theirs = (values.square().sum(-1) for values in (trial.mine, trial.theirs))
    if trial.mine.shape[-1] > 3 and _alike(mine, theirs):
        return "rope scaling", "its length is right, but it is rotated differently"
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
    """Returns a state as [rows, places, features]; `axis` is the axis of places and `rows` that of
    rows, None if there is none."""
    values: Tensor = found.movedim(axis, 0)
    if rows is None or rows == axis:
        return values.reshape(1, values.shape[0], -1)
    rows = rows + 1 if rows < axis else rows
    return (
        values.movedim(rows, 0).flatten(2)
        if values.dim() > 2
        else values.movedim(rows, 0)[..., None]
    )
