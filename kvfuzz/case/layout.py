"""Finds, for each fed token, the text that it belongs to and its position there.

Whatever is done to a cache, each row's logits must be those of the row's own text: the tokens it
was fed, minus what was cropped and without padding, moved with the row when rows are reordered. So
every fed cell of a case's token table belongs to a *sequence*, which the uncached path can run.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import torch
from torch import Tensor

from kvfuzz.case.case import Case, Step
from kvfuzz.case.schedule import Entry, Tree
from kvfuzz.case.slots import Slots

Sequence = tuple[int, ...]


@dataclass(frozen=True)
class Layout:
    """The texts of a case, and where each cell of its token table stands in them.

    `sequences` are the texts of all rows, padded on the right to one length with their last token
    (a causal path never sees that); `lengths` are their true lengths. For each cell of the token
    table [rows, columns], `sequence` is the number of its sequence, `position` its position there,
    and `fed` whether it holds text that was fed. `plain` is the `is_plain` of the case.
    """

    sequences: tuple[Sequence, ...]
    lengths: tuple[int, ...]
    sequence: Tensor
    position: Tensor
    fed: Tensor
    plain: bool

    def prefix(self, stop: int) -> tuple[Sequence, ...]:
        """Returns the first `stop` tokens of every sequence."""
        return tuple(one[:stop] for one in self.sequences)

    def table(self, values: Tensor) -> Tensor:
        """Rearranges `values` [sequences, positions, ...] to the token table [rows, columns, ...].
        A cell that was not fed gets the values of position 0 of sequence 0."""
        return values if self.plain else values[self.sequence, self.position]


def layout(case: Case) -> Layout:
    """Returns the layout of `case`."""
    return _layout(case.tokens, case.schedule, case.given)


@lru_cache(maxsize=1024)  # a campaign asks for those of all its cases, once for each mutant
def _layout(
    tokens: tuple[Sequence, ...], schedule: tuple[Entry, ...], given: tuple[str, ...]
) -> Layout:
    case = Case(tokens, schedule, given=given)
    return _plain_layout(case) if case.is_plain else _followed_layout(case)


def _plain_layout(case: Case) -> Layout:
    rows, columns = case.batch, case.length
    return Layout(
        case.tokens,
        (columns,) * rows,
        torch.arange(rows)[:, None].expand(rows, columns),
        torch.arange(columns).expand(rows, columns),
        torch.ones(rows, columns, dtype=torch.bool),
        plain=True,
    )


def _followed_layout(case: Case) -> Layout:
    feeding = [step for step in case.steps() if step.feeds]
    rows = [real_tokens(row) for step in feeding for row in step.after]
    trees = {step.index: _candidate_texts(step, case) for step in feeding if _is_tree(step)}
    sequences = _longest(rows + [one for texts in trees.values() for row in texts for one in row])
    sequence = torch.zeros(case.batch, case.length, dtype=torch.int64)
    position = torch.zeros_like(sequence)
    fed = torch.zeros_like(sequence, dtype=torch.bool)
    for step in feeding:
        for row, texts in enumerate(trees.get(step.index, ())):
            for column, text in enumerate(texts, step.start):
                sequence[row, column] = _holding(sequences, text)
                position[row, column], fed[row, column] = len(text) - 1, True
    for step in feeding:
        if step.index in trees:
            continue
        for row, (slots, positions) in enumerate(
            zip(step.after, slot_positions(step), strict=True)
        ):
            number = _holding(sequences, real_tokens(slots))
            for column, place in enumerate(positions[len(slots) - step.size :], step.start):
                if place is not None:
                    sequence[row, column], position[row, column] = number, place
                    fed[row, column] = True
    longest = max(map(len, sequences))
    filled = tuple(row + row[-1:] * (longest - len(row)) for row in sequences)
    return Layout(filled, tuple(map(len, sequences)), sequence, position, fed, plain=False)


def _is_tree(step: Step) -> bool:
    return isinstance(step.operation, Tree)


def _candidate_texts(step: Step, case: Case) -> list[list[Sequence]]:
    """Returns, for each row and each candidate of a tree, the text of the row up to and with it."""
    tree = step.operation
    assert isinstance(tree, Tree)
    branches = [tree.branch(candidate) for candidate in range(tree.size)]
    return [
        [
            (*real_tokens(slots), *(case.tokens[row][step.start + number] for number in branch))
            for branch in branches
        ]
        for row, slots in enumerate(step.before)
    ]


def real_tokens(slots: tuple[int | None, ...]) -> Sequence:
    """Returns the tokens in `slots` without padding."""
    return tuple(token for token in slots if token is not None)


def slot_positions(step: Step) -> list[list[int | None]]:
    """Returns the position of each slot of each row of the cache after `step`; None for padding."""
    return [_count(row) for row in step.after]


def _count(slots: tuple[int | None, ...]) -> list[int | None]:
    count = 0
    positions: list[int | None] = []
    for token in slots:
        positions.append(None if token is None else count)
        count += token is not None
    return positions


def text_mask(slots: Slots) -> list[list[bool]]:
    """Returns, for each slot of each row, whether it holds text (and not padding)."""
    return [[token is not None for token in row] for row in slots]


def fed_positions(step: Step) -> list[list[int]]:
    """Returns the positions [batch][size] of the tokens that `step` feeds. A padding token gets the
    number of text tokens before it."""
    if isinstance(step.operation, Tree):
        depths = [len(step.operation.branch(n)) - 1 for n in range(step.size)]
        return [[len(real_tokens(row)) + depth for depth in depths] for row in step.before]
    return [
        [len(real_tokens(row[:slot])) for slot in range(len(row) - step.size, len(row))]
        for row in step.after
    ]


def sequence_numbers(step: Step, found: Layout) -> list[int]:
    """Returns, for each row of the cache after `step`, the number of a sequence it is a prefix
    of."""
    return [_holding(found.sequences, real_tokens(row)) for row in step.after]


def _longest(texts: list[Sequence]) -> list[Sequence]:
    """Drops the `texts` that are a prefix of another; keeps the order."""
    distinct = list(dict.fromkeys(texts))
    return [
        one
        for one in distinct
        if not any(other is not one and other[: len(one)] == one for other in distinct)
    ]


def _holding(sequences: list[Sequence] | tuple[Sequence, ...], wanted: Sequence) -> int:
    """Returns the number of the first sequence that begins with `wanted`."""
    return next(n for n, one in enumerate(sequences) if one[: len(wanted)] == wanted)
