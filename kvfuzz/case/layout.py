"""Where each fed token stands: in which sequence of tokens, and at which position of that.

Whatever is done to a cache, each row's logits must be those of the row's own tokens: what it was
fed, less what was cropped, moved with it when rows were reordered, without padding. So every cell
of a case's token table that was fed belongs to a *sequence*, which the uncached path can run.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import torch
from torch import Tensor

from kvfuzz.case.case import Case, Slots, Step
from kvfuzz.case.schedule import Entry

Sequence = tuple[int, ...]


@dataclass(frozen=True)
class Layout:
    """The `sequences` that the rows of a case came to, filled up on the right to one length (with
    their last token: a causal path does not see that), and how long each is. Of each cell of the
    token table [rows, columns], `sequence` is the number of its sequence and `position` its
    position in that; `fed` tells whether it is text that was fed at all."""

    sequences: tuple[Sequence, ...]
    lengths: tuple[int, ...]
    sequence: Tensor
    position: Tensor
    fed: Tensor
    plain: bool

    def prefix(self, stop: int) -> tuple[Sequence, ...]:
        """The first `stop` tokens of every sequence."""
        return tuple(one[:stop] for one in self.sequences)

    def table(self, values: Tensor) -> Tensor:
        """`values` [sequences, positions, ...] at the cells of the table [rows, columns, ...];
        what was not fed gets those of the first position."""
        return values if self.plain else values[self.sequence, self.position]


def layout(case: Case) -> Layout:
    """The layout of `case`."""
    return _layout(case.tokens, case.schedule, case.given)


@lru_cache(maxsize=1024)  # a campaign asks for those of all its cases, for one mutant after another
def _layout(
    tokens: tuple[Sequence, ...], schedule: tuple[Entry, ...], given: tuple[str, ...]
) -> Layout:
    return _layout_of(Case(tokens, schedule, given=given))


def _layout_of(case: Case) -> Layout:
    if case.is_plain:
        rows, columns = case.batch, case.length
        return Layout(
            case.tokens,
            (columns,) * rows,
            torch.arange(rows)[:, None].expand(rows, columns),
            torch.arange(columns).expand(rows, columns),
            torch.ones(rows, columns, dtype=torch.bool),
            plain=True,
        )
    fed = [step for step in case.steps() if step.feeds]
    sequences = _longest([text(row) for step in fed for row in step.after])
    sequence = torch.zeros(case.batch, case.length, dtype=torch.int64)
    position = torch.zeros_like(sequence)
    real = torch.zeros_like(sequence, dtype=torch.bool)
    for step in fed:
        for row, (slots, places) in enumerate(zip(step.after, places_of(step), strict=True)):
            number = _holding(sequences, text(slots))
            for column, place in enumerate(places[len(slots) - step.size :], step.start):
                if place is not None:
                    sequence[row, column], position[row, column] = number, place
                    real[row, column] = True
    longest = max(map(len, sequences))
    filled = tuple(row + row[-1:] * (longest - len(row)) for row in sequences)
    return Layout(filled, tuple(map(len, sequences)), sequence, position, real, plain=False)


def text(slots: tuple[int | None, ...]) -> Sequence:
    """The tokens in `slots` that are no padding."""
    return tuple(token for token in slots if token is not None)


def places_of(step: Step) -> list[list[int | None]]:
    """The position of each slot of each row of the cache after `step`; None for padding."""
    return [_counted(row) for row in step.after]


def _counted(slots: tuple[int | None, ...]) -> list[int | None]:
    count = 0
    places: list[int | None] = []
    for token in slots:
        places.append(None if token is None else count)
        count += token is not None
    return places


def text_mask(slots: Slots) -> list[list[bool]]:
    """Which slots of each row hold text."""
    return [[token is not None for token in row] for row in slots]


def positions(step: Step) -> list[list[int]]:
    """The positions of the new tokens of `step`, [batch][size]; padding gets the number of tokens
    of text before it."""
    return [
        [len(text(row[:slot])) for slot in range(len(row) - step.size, len(row))]
        for row in step.after
    ]


def numbers_of(step: Step, found: Layout) -> list[int]:
    """The number of the sequence that each row of the cache after `step` is a prefix of."""
    return [_holding(found.sequences, text(row)) for row in step.after]


def _longest(texts: list[Sequence]) -> list[Sequence]:
    """Those of `texts` that are not a prefix of another, in the order in which they came."""
    distinct = list(dict.fromkeys(texts))
    return [
        one
        for one in distinct
        if not any(other is not one and other[: len(one)] == one for other in distinct)
    ]


def _holding(sequences: list[Sequence] | tuple[Sequence, ...], wanted: Sequence) -> int:
    return next(n for n, one in enumerate(sequences) if one[: len(wanted)] == wanted)
