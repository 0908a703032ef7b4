"""Compare the states of an examined call with those of its reference run, each against its own
noise."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from kvfuzz.tolerance import ROUNDOFF
from kvfuzz.tracing.aligning import Frame, Piece, aligned, at_slots
from kvfuzz.tracing.events import Event

MULTIPLE = 64.0
"""What is allowed, in units of the noise of a state: one perturbation alone is drawn."""

HUGE = 1e30
"""Larger numbers stand for infinity, as in a mask."""

# The roundoff of float32: what is coarser has noise of its own at every step.
_FINE = 2.0**-24
# A number that stands for "never" beside ordinary ones must not set their scale.
_OUTLIER = 1e4
_ORDINARY = 1e3


@dataclass(frozen=True, slots=True)
class Compared:
    """A state beside its reference, in `pieces`: `differences` holds for each the largest
    |difference| at each of its positions (or one in all), of which so much is `allowed`. `frame`
    holds the sizes of both runs."""

    event: Event
    partner: Event
    frame: Frame
    pieces: tuple[Piece, ...]
    differences: tuple[tuple[float, ...], ...]
    allowed: float

    @property
    def differs(self) -> bool:
        return any(value > self.allowed for values in self.differences for value in values)

    @property
    def excess(self) -> float:
        """The largest difference / allowed."""
        largest = max((value for values in self.differences for value in values), default=0.0)
        return ratio(largest, self.allowed)


@dataclass(frozen=True, slots=True)
class Worst:
    """Where a state differs: the largest `difference` at the first `position` that differs, its
    `row` and its `channel`; -1 where the state has none."""

    difference: float
    row: int
    position: int
    channel: int


def compared(
    event: Event, partner: Event, frame: Frame, noise: float, along: int | None = None
) -> Compared | None:
    """`event` beside its `partner`, whose noise relative to its scale is `noise`; None where they
    do not correspond. `along` is the axis of tokens, where that is known."""
    if event.output.is_floating_point() != partner.output.is_floating_point():
        return None
    pieces = aligned(event.output, partner.output, frame, along)
    if pieces is None or (not pieces[0].positions and not event.output.is_floating_point()):
        return None  # a count, which grows with the tokens
    if not frame.plain:
        pieces = [_settled(piece, frame, allowed_for(partner.output, noise)) for piece in pieces]
    differences = [
        _along(difference_of(piece.found, piece.right), piece.axis).tolist() for piece in pieces
    ]
    same = not any(value for values in differences for value in values)
    allowed = 0.0 if same else allowed_for(partner.output, noise)
    return Compared(event, partner, frame, tuple(pieces), tuple(map(tuple, differences)), allowed)


def _settled(piece: Piece, frame: Frame, allowed: float) -> Piece:
    """`piece`, or the same with an axis of slots where that makes it right."""
    if _largest(piece) <= allowed:
        return piece
    return next((one for one in at_slots(piece, frame) if _largest(one) <= allowed), piece)


def _largest(piece: Piece) -> float:
    difference = difference_of(piece.found, piece.right)
    return float(difference.max()) if difference.numel() else 0.0


def worst(one: Compared) -> Worst:
    """Where `one` differs first, by position and then by size."""
    places = [
        (piece.positions[offset] if piece.positions else -1, -value, number, offset)
        for number, (piece, values) in enumerate(zip(one.pieces, one.differences, strict=True))
        for offset, value in enumerate(values)
        if value > one.allowed
    ]
    position, _, number, offset = min(places)
    return _place(one.pieces[number], offset, position)


def difference_of(found: Tensor, right: Tensor) -> Tensor:
    """|found - right| in float64: nought where both stand for the same infinity, or are NaN; inf
    where one alone is."""
    if not found.is_floating_point():
        return (found.double() - right.double()).abs()
    difference = (found.double() - right.double()).abs()
    if not difference.numel() or float(difference.max()) < 1:
        return difference
    mine, theirs = _finite(found), _finite(right)
    same = (mine == theirs) | (mine.isnan() & theirs.isnan())
    difference = (mine - theirs).abs()
    return difference.masked_fill(same, 0.0).nan_to_num(nan=math.inf, posinf=math.inf)


def allowed_for(right: Tensor, noise: float) -> float:
    """What is allowed for a state as large as `right`; nothing for integers."""
    if not right.is_floating_point():
        return 0.0
    roundoff = ROUNDOFF.get(right.dtype, 2.0**-24)
    # Of what has few digits so much would be all of it.
    few = 4 * roundoff if roundoff <= _FINE else roundoff / 4
    return MULTIPLE * (noise + few) * scale_of(right)


def scale_of(values: Tensor) -> float:
    """The largest |entry| of `values` that is a number, outliers apart."""
    sizes = values.detach().double().abs()
    largest = float(sizes.max()) if sizes.numel() else 0.0
    if largest < _ORDINARY:
        return largest
    sizes = sizes[(sizes < HUGE) & (sizes > 0)]
    if not sizes.numel():
        return 0.0
    return min(float(sizes.max()), _OUTLIER * float(sizes.median()))


def noise_between(event: Event, moved: Event) -> float:
    """The noise of `event`, relative to its scale: how far a perturbation of the weights by a
    roundoff has `moved` it; 0 where that cannot be told."""
    right = event.output
    if not right.is_floating_point() or right.shape != moved.output.shape or not right.numel():
        return 0.0
    scale = scale_of(right)
    return float(difference_of(moved.output, right).max()) / scale if scale else 0.0


def close(found: Tensor, right: Tensor) -> bool:
    """Whether two states of one shape differ by less than any noise."""
    difference = difference_of(found, right)
    return not difference.numel() or float(difference.max()) <= allowed_for(right, 0.0)


def _finite(values: Tensor) -> Tensor:
    values = values.detach().double()
    return values.masked_fill(values > HUGE, math.inf).masked_fill(values < -HUGE, -math.inf)


def _along(difference: Tensor, axis: int | None) -> Tensor:
    """The largest along `axis`, or in all [1]."""
    if not difference.numel():
        return difference.new_zeros(difference.shape[axis] if axis is not None else 1)
    if axis is None:
        return difference.max()[None]
    others = [other for other in range(difference.dim()) if other != axis]
    return difference.amax(others) if others else difference


def ratio(difference: float, allowed: float) -> float:
    """difference / allowed, inf where nothing is allowed."""
    if difference == 0:
        return 0.0
    return difference / allowed if allowed > 0 else math.inf


def _place(piece: Piece, offset: int, position: int) -> Worst:
    difference = difference_of(piece.found, piece.right)
    if piece.axis is not None:
        difference = difference.narrow(piece.axis, offset, 1)
    place = torch.unravel_index(difference.argmax(), difference.shape)
    row = piece.row if piece.row is not None else 0
    if piece.row is None and piece.rows is not None:
        row = int(place[piece.rows])
    free = [axis for axis in range(difference.dim()) if axis not in (piece.axis, piece.rows)]
    channel = int(place[free[-1]]) if free and difference.shape[free[-1]] > 1 else -1
    return Worst(float(difference.max()), row, position, channel)
