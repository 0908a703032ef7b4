"""Compare the states of an examined call with those of its reference run, each against its own
noise."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from kvfuzz.localize.operations.align import Frame, aligned, at_slots
from kvfuzz.localize.operations.difference import allowed_for, difference_of, largest_along, ratio
from kvfuzz.localize.operations.events import Event
from kvfuzz.localize.operations.pieces import Piece


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
    def largest(self) -> float:
        """The largest of the differences."""
        return max((max(values) for values in self.differences if values), default=0.0)

    @property
    def differs(self) -> bool:
        return self.largest > self.allowed

    @property
    def excess(self) -> float:
        """The largest difference / allowed."""
        return ratio(self.largest, self.allowed)


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
        allowed = allowed_beside(partner, noise)
        pieces = [_settled(piece, frame, allowed) for piece in pieces]
    differences = tuple(largest_along(piece.found, piece.right, piece.axis) for piece in pieces)
    same = not any(map(any, differences))
    allowed = 0.0 if same else allowed_beside(partner, noise)
    return Compared(event, partner, frame, tuple(pieces), differences, allowed)


def allowed_beside(partner: Event, noise: float) -> float:
    """What is allowed for a state beside that of `partner`."""
    return allowed_for(partner.output, noise, partner.scale)


def _settled(piece: Piece, frame: Frame, allowed: float) -> Piece:
    """`piece`, or the same with an axis of slots where that makes it right."""
    if _largest(piece) <= allowed:
        return piece
    return next((one for one in at_slots(piece, frame) if _largest(one) <= allowed), piece)


def _largest(piece: Piece) -> float:
    return max(largest_along(piece.found, piece.right, None))


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


def noise_between(event: Event, moved: Event) -> float:
    """The noise of `event`, relative to its scale: how far a perturbation of the weights by a
    roundoff has `moved` it; 0 where that cannot be told."""
    right = event.output
    if not right.is_floating_point() or right.shape != moved.output.shape or not right.numel():
        return 0.0
    return max(largest_along(moved.output, right, None)) / event.scale if event.scale else 0.0


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
