"""Finds the operation that lets a token see a later one, behind the first result that shows it.

Attention has states with an axis of queries and one of keys. Such a state is *closed* if its
entries for later keys are all zero or near minus infinity, and those of a token itself are not.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from kvfuzz.localize.operations.events import TAPPED, Event

FLATTENING = ("view", "reshape", "flatten", "unflatten")
_TURNING = ("transpose", "permute", "movedim", "swapaxes", "contiguous")
# A score as low as this stands for "never".
_NEVER = -1e9


def axes_of(state: Tensor, length: int) -> list[int]:
    """Returns the axes of `state` that are `length` long."""
    return [axis for axis, size in enumerate(state.shape) if size == length]


def find_opening(events: Sequence[Event], moved: Event, length: int) -> list[Event]:
    """Returns the operations that may let a token see later ones of all `length`, the likeliest
    first; `moved` is the first whose result for a token moves with the later ones.

    If `moved` reads a state that should be closed and is not, that was opened by an operation which
    reads a closed one, or by what made the mask. Where there is no mask, it was left out. If it
    only gives a state another shape, tokens mix where the axes before are in a wrong order.
    """
    if moved.operation in FLATTENING:
        return [*(e for n in moved.inputs if (e := events[n]).operation in _TURNING), moved]
    squares = _Squares(events, length)
    opened = [one for one in squares.read_by(moved) if not squares.is_closed(one)]
    if not opened:
        return [moved]
    last = opened[0]
    while sources := squares.read_by(last):
        if any(squares.is_closed(one) for one in sources):
            return [last]
        masks = [one for one in sources if not squares.is_product(one)]
        last = next(iter([*masks, *sources]))
    if squares.is_product(last):
        return [moved, opened[0]]
    return [*_wrong_positions(events, last, length), last]


def _wrong_positions(events: Sequence[Event], mask: Event, length: int) -> list[Event]:
    """Returns what `mask` is made from that holds as many whole numbers as there are tokens, and
    not those from 0 on."""
    return [
        events[index]
        for index in mask.inputs
        if not (values := events[index].output).is_floating_point()
        and values.dtype != torch.bool
        and values.numel() == length
        and not torch.equal(values.flatten(), torch.arange(length, device=values.device))
    ]


class _Squares:
    """The states of a run that have an axis of queries and one of keys, both `length` long."""

    def __init__(self, events: Sequence[Event], length: int) -> None:
        self._events, self._length = events, length

    def read_by(self, event: Event) -> list[Event]:
        """Returns those that `event` reads."""
        sources = (self._events[index] for index in event.inputs)
        return [one for one in sources if len(axes_of(one.output, self._length)) == 2]

    def is_product(self, event: Event) -> bool:
        """Whether `event` is made from a product of queries and keys."""
        return event.operation in TAPPED or any(map(self.is_product, self.read_by(event)))

    def is_closed(self, event: Event) -> bool:
        """Whether no query sees a later key in `event`, and each sees its own."""
        state = event.output.movedim(axes_of(event.output, self._length), (-2, -1))
        later = torch.ones(self._length, self._length, dtype=torch.bool, device=state.device)
        hidden, own = state[..., later.triu(1)], state.diagonal(dim1=-2, dim2=-1)
        if state.dtype == torch.bool:  # of those that are visible, or of those that are hidden
            return bool(
                (hidden == hidden.flatten()[0]).all() and (own != hidden.flatten()[0]).all()
            )
        never = bool((hidden < _NEVER).all() and (own > _NEVER).all())
        return never or bool((hidden == 0).all() and (own != 0).all())
