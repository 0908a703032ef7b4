"""Compares one state of the examined call with that of its reference run, within its noise."""

from __future__ import annotations

from dataclasses import dataclass

import numpy

from kvfuzz.localize.operations.align import (
    AxisSizes,
    Piece,
    align,
    align_by_content,
    align_by_slot,
)
from kvfuzz.localize.operations.difference import abs_difference, allowed_for, largest_along, ratio
from kvfuzz.localize.operations.events import Event


@dataclass(frozen=True, slots=True)
class ComparedEvent:
    """A state and its reference, in `pieces`. `differences` holds for each piece the largest
    |difference| at each of its positions (or one number in all), `largest` is the largest of these;
    `allowed` is the tolerance of each, and `sizes` are those of both runs. `missing` says in words
    what the state lacks, None if nothing."""

    event: Event
    partner: Event
    sizes: AxisSizes
    pieces: tuple[Piece, ...]
    differences: tuple[tuple[float, ...], ...]
    largest: float
    allowed: float
    missing: str | None = None

    @property
    def differs(self) -> bool:
        return self.largest > self.allowed

    @property
    def excess(self) -> float:
        """The largest difference / allowed."""
        return ratio(self.largest, self.allowed)


@dataclass(frozen=True, slots=True)
class WorstEntry:
    """Where a state differs: the largest `difference` at the first `position` that differs, its
    `row` and its `channel`; -1 where the state has none."""

    difference: float
    row: int
    position: int
    channel: int


def compare_events(
    event: Event, partner: Event, sizes: AxisSizes, noise: float, along: int | None = None
) -> ComparedEvent | None:
    """Compares `event` with its `partner`, whose relative noise is `noise`; None where they do not
    correspond. `along` is the axis of tokens, where that is known."""
    if event.output.is_floating_point() != partner.output.is_floating_point():
        return None
    pieces = align(event.output, partner.output, sizes, along)
    if pieces is None or (not pieces[0].positions and not event.output.is_floating_point()):
        return None  # an integer without positions is a count, which grows with the tokens
    if not sizes.plain:
        allowed = allowed_difference(partner, noise)
        pieces = [_best_alignment(piece, sizes, allowed) for piece in pieces]
    if pieces[0].last is not None:
        allowed = allowed_difference(partner, noise)
        pieces = [in_order(piece, allowed) for piece in pieces]
    differences = tuple(largest_along(piece.found, piece.right, piece.axis) for piece in pieces)
    largest = max((max(values) for values in differences if values), default=0.0)
    allowed = allowed_difference(partner, noise) if largest else 0.0
    return ComparedEvent(event, partner, sizes, tuple(pieces), differences, largest, allowed)


def allowed_difference(partner: Event, noise: float) -> float:
    """Returns the difference allowed to a state whose reference is `partner`."""
    return allowed_for(partner.output, noise, partner.scale)


def _best_alignment(piece: Piece, sizes: AxisSizes, allowed: float) -> Piece:
    """Returns `piece`, or the same aligned by slots where only that makes it agree."""
    if _largest(piece) <= allowed:
        return piece
    return next((one for one in align_by_slot(piece, sizes) if _largest(one) <= allowed), piece)


def in_order(piece: Piece, allowed: float) -> Piece:
    """Returns `piece`, or that of a ring with its slots in the order of their positions."""
    if piece.last is None or _largest(piece) <= allowed:
        return piece
    return align_by_content(piece, allowed) or piece


def _largest(piece: Piece) -> float:
    return max(largest_along(piece.found, piece.right, None))


def find_worst(one: ComparedEvent) -> WorstEntry:
    """Returns where `one`, which differs, is worst: at the first position that differs, and of the
    rows there where the difference is the largest."""
    places = [
        (piece.positions[offset] if piece.positions else -1, -value, number, offset)
        for number, (piece, values) in enumerate(zip(one.pieces, one.differences, strict=True))
        for offset, value in enumerate(values)
        if value > one.allowed
    ]
    position, _, number, offset = min(places)
    return _worst_in(one.pieces[number], offset, position)


def _worst_in(piece: Piece, offset: int, position: int) -> WorstEntry:
    difference = abs_difference(piece.found, piece.right)
    if piece.axis is not None:
        difference = difference.narrow(piece.axis, offset, 1)
    # torch.unravel_index imports sympy, which takes a third of the time of importing torch.
    place = numpy.unravel_index(int(difference.argmax()), difference.shape)
    row = piece.row if piece.row is not None else 0
    if piece.row is None and piece.rows is not None:
        row = int(place[piece.rows])
    free = [axis for axis in range(difference.dim()) if axis not in (piece.axis, piece.rows)]
    channel = int(place[free[-1]]) if free and difference.shape[free[-1]] > 1 else -1
    return WorstEntry(float(difference.max()), row, position, channel)


def noise_between(event: Event, moved: Event) -> float:
    """Returns the noise of `event` relative to its scale: how far it has `moved` when the weights
    were perturbed by a roundoff; 0 where the two cannot be compared."""
    right = event.output
    if not right.is_floating_point() or right.shape != moved.output.shape or not right.numel():
        return 0.0
    return max(largest_along(moved.output, right, None)) / event.scale if event.scale else 0.0
