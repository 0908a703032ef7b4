"""Tells whether an operation of the cached path is right that its reference run may not have.

The cached path has operations that the reference has not, such as the writes into a cache. Such an
operation is right if it only reshapes what is right, or if the reference holds its values.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import chain

import torch

from kvfuzz.localize.operations.align import AxisSizes
from kvfuzz.localize.operations.compare_states import allowed_difference, compare_events
from kvfuzz.localize.operations.difference import is_close
from kvfuzz.localize.operations.events import Event
from kvfuzz.localize.operations.pair import event_key
from kvfuzz.localize.operations.reference_runs import StepReference, ValueIndex
from kvfuzz.localize.operations.traced_case import TracedCase
from kvfuzz.localize.operations.unwritten import MOVING


def is_right(traced: TracedCase, event: Event) -> bool:
    """Whether `event` agrees with its counterpart. Without one it is right if it holds nothing yet,
    if it only reshapes what is right, or if the reference run has its values elsewhere in the same
    module."""
    if (one := traced.comparisons.of(event.index)) is not None:
        return not one.differs
    known = traced.right
    if event.index not in known:
        if not _is_blank(event) and _is_misshapen(traced, event):  # room may be larger
            known[event.index] = False
            return False
        sources = [traced.recording.events[index] for index in event.inputs]
        follows = _only_reshapes(event, sources) or traced.comparisons.is_partial(event.index)
        # What is cheap to find out comes first.
        known[event.index] = (
            _is_blank(event)
            or _are_positions(traced, event)
            or _is_constant(traced, event)
            or (follows and not event.unseen and all(is_right(traced, one) for one in sources))
            or _is_elsewhere(traced, event)
            or _is_partly_written(traced, event)
        )
    return known[event.index]


_MAKING = ("zeros", "ones", "empty", "full", "new_", "tensor")


def _is_blank(event: Event) -> bool:
    """Whether nothing has been written yet: no entries, or a new tensor with one value all over."""
    values = event.output
    if not values.numel() or not event.operation.startswith(_MAKING):
        return not values.numel()
    return bool((values == values.flatten()[0]).all())


def _are_positions(traced: TracedCase, event: Event) -> bool:
    """Whether `event` holds the positions of the new tokens, or the numbers of all slots, in order.

    An adapter may make them that its path without a cache does not need.
    """
    values, sizes = event.output, traced.sizes.get(event.step)
    if sizes is None or not sizes.plain or not _is_whole(values) or not values.numel():
        return False
    (group,) = sizes.groups
    for right in (group.new_positions, group.slot_positions):
        if values.shape[-1:] == (len(right),):
            wanted = torch.tensor(right, dtype=values.dtype, device=values.device)
            return bool((values == wanted).all())
    return False


def _is_constant(traced: TracedCase, event: Event) -> bool:
    """Whether `event` is made from no state, and the reference makes the same on its line, however
    often."""
    if event.inputs or event.unseen or not _is_whole(event.output):
        return False
    run = traced.references.own(event.step).run if event.step in traced.sizes else None
    where = event_key(event)[1:]  # a method that is not `forward` runs in another module
    groups = run.groups.items() if run else ()
    alike = [one for key, those in groups if key[1:] == where for one in those]
    return any(torch.equal(event.output, one.output) for one in alike)


def _is_whole(values: torch.Tensor) -> bool:
    return not values.is_floating_point() and values.dtype != torch.bool


# Operations that return their operand in another shape. A slice is not among them: it may take the
# wrong part.
_RESHAPING = {
    "squeeze",
    "unsqueeze",
    "view",
    "reshape",
    "transpose",
    "permute",
    "expand",
    "contiguous",
    "to",
    "float",
    "double",
    "flatten",
}


def _only_reshapes(event: Event, sources: Sequence[Event]) -> bool:
    """Whether `event` is its operand in another shape; that is a weight if there are no
    `sources`."""
    if event.operation == "__getitem__":
        return len(sources) == 1 and sources[0].output.numel() == event.output.numel()
    return event.operation in _RESHAPING


def _is_misshapen(traced: TracedCase, event: Event) -> bool:
    """Whether the same operation has a result of another shape in the reference run, in more than
    the number of tokens: a wrong axis was given to it."""
    partner, sizes = traced.comparisons.partner_of(event.index), traced.sizes.get(event.step)
    if partner is None or sizes is None or not sizes.plain:
        return False
    mine, theirs = event.output.shape, partner.output.shape
    counts = sizes.fed, sizes.slots
    return len(mine) != len(theirs) or not all(
        own == other or any(own * sizes.length == other * count for count in counts)
        for own, other in zip(mine, theirs, strict=True)
    )


def _is_elsewhere(traced: TracedCase, event: Event) -> bool:
    """Whether a reference run has the values of `event` somewhere in the same module."""
    if not event.output.is_floating_point() or event.output.numel() < 2:
        return False
    references = traced.references.for_step(event.step)
    return any(_holds(reference, event) for reference in references)


# These only move numbers, and may have moved them to a wrong place: finding their values somewhere
# proves nothing.
MOVES = (
    MOVING
    | _RESHAPING
    | {"where", "masked_fill", "gather", "chunk", "split", "__setitem__", "embedding", "copy_"}
)


def _holds(reference: StepReference, event: Event) -> bool:
    """Whether the reference has the values of `event` in the same module."""
    sizes, values = reference.sizes, reference.run.values_in(event.module)
    # The largest value narrows the search to the few events that hold it.
    largest = event.output.max()
    for shape, those in values.items():
        if _may_correspond(event.output.shape, shape, sizes) and any(
            _same(event, other, sizes) for other in those.find(largest)
        ):
            return True
    if not sizes.plain:
        return False
    every = reference.run.every_value
    if sizes.fed == 1 and event.operation not in MOVES and _values_within(event, every, sizes):
        return True
    return _holds_without_axis(reference, event, largest) or _holds_block(reference, event, largest)


def _holds_block(reference: StepReference, event: Event, largest: torch.Tensor) -> bool:
    """Whether `event` joins states to what a state of the reference holds in a row. A slice proves
    nothing: it may be of the wrong part."""
    mine = event.output
    for shape, those in reference.run.every_value.items() if event.operation == "cat" else ():
        longer = [n for n, (a, b) in enumerate(zip(mine.shape, shape, strict=False)) if a != b]
        if len(shape) != mine.dim() or len(longer) != 1 or shape[longer[0]] < mine.shape[longer[0]]:
            continue
        (axis,) = longer
        for other in those.find(largest):
            starts = range(shape[axis] - mine.shape[axis] + 1)
            blocks = (other.output.narrow(axis, start, mine.shape[axis]) for start in starts)
            if any(is_close(mine, block) for block in blocks):
                return True
    return False


def _holds_without_axis(reference: StepReference, event: Event, largest: torch.Tensor) -> bool:
    """Whether any module of the reference has the values of `event` at the position of a new token
    or of all tokens so far. Code that takes one token after the other may have no axis for them,
    and call other methods than `forward`."""
    sizes = reference.sizes
    for shape, those in reference.run.every_value.items():
        views = _views_of(tuple(event.output.shape), shape, sizes)
        for other in those.find(largest) if views else ():
            if any(
                is_close(event.output, other.output[view].reshape(event.output.shape))
                for view in views
            ):
                return True
    return False


def _views_of(
    mine: tuple[int, ...], theirs: tuple[int, ...], sizes: AxisSizes
) -> list[tuple[slice | int, ...]]:
    """Returns the indices that take from a state of the shape `theirs` one of the shape `mine`."""
    found: list[tuple[slice | int, ...]] = []
    for axis, size in enumerate(theirs):
        if size != sizes.length:
            continue
        before, after = theirs[:axis], theirs[axis + 1 :]
        rest = (slice(None),) * axis
        if mine in (before + after, (*before, 1, *after)):
            found += [(*rest, position) for position in sizes.groups[0].new_positions]
        if mine == (*before, sizes.slots, *after):
            found.append((*rest, slice(sizes.slots)))
    return found


def _may_correspond(mine: Sequence[int], theirs: Sequence[int], sizes: AxisSizes) -> bool:
    """Whether a state of the shape `theirs` in the reference run can hold one of the shape `mine`:
    only the axis of its tokens is longer, which may be one with that of its rows."""
    longer = sizes.length, sizes.length * sizes.rows
    return len(mine) == len(theirs) and all(
        own == other or other in longer for own, other in zip(mine, theirs, strict=True)
    )


def _same(event: Event, other: Event, sizes: AxisSizes) -> bool:
    """Whether `event` holds what `other` of the reference run does: at its own positions, or at the
    last ones, as a state carried from step to step does."""
    one = compare_events(event, other, sizes, 0.0)
    if one is not None:
        return not one.differs and bool((event.output != 0).any())
    mine, theirs = event.output, other.output
    for axis, size in enumerate(theirs.shape):
        if sizes.plain and size == sizes.length and theirs.dim() == mine.dim():
            tail = theirs.narrow(axis, max(0, size - mine.shape[axis]), min(size, mine.shape[axis]))
            if tail.shape == mine.shape and is_close(mine, tail):
                return True
    return False


# This many different numbers do not coincide by chance.
_ENOUGH = 4


def _values_within(
    event: Event, values: Mapping[tuple[int, ...], ValueIndex], sizes: AxisSizes
) -> bool:
    """Whether every number of `event` is held by one event of the reference run, at the position of
    the new token where it has an axis of tokens. A recurrence computes one token by other
    operations, on other shapes, than many tokens."""
    mine = torch.unique(event.output.detach().double())
    mine = mine[(mine != 0) & (mine != 1)]
    if mine.numel() < _ENOUGH or not bool(mine.isfinite().all()):
        return False
    for other in chain.from_iterable(those.find(mine.max()) for those in values.values()):
        held = _at_new_token(other.output, sizes)
        if held.numel() < mine.numel():
            continue
        # The nearest of their sorted values to each of mine is just above or just below it.
        theirs = held.detach().double().flatten().sort().values
        above = torch.searchsorted(theirs, mine).clamp(max=theirs.numel() - 1)
        below = (above - 1).clamp(min=0)
        nearest = torch.minimum((theirs[above] - mine).abs(), (theirs[below] - mine).abs())
        if bool((nearest <= allowed_difference(other, 0.0)).all()):
            return True
    return False


def _at_new_token(state: torch.Tensor, sizes: AxisSizes) -> torch.Tensor:
    """Returns of a state of the reference what is of the one new token; all of it where no axis, or
    more than one, may be that of tokens."""
    axes = [axis for axis, size in enumerate(state.shape) if size == sizes.length]
    return state.select(axes[0], sizes.groups[0].new_positions[0]) if len(axes) == 1 else state


def _is_partly_written(traced: TracedCase, event: Event) -> bool:
    """Whether `event` has written into a preallocated tensor what a longer run writes there too,
    and for exactly its own share of the tokens."""
    if not event.writes or event.step not in traced.sizes:
        return False
    later = traced.references.covering(event.step)
    sizes, mine = traced.sizes[event.step], event.output
    if later == event.step or not traced.sizes[later].plain or not mine.is_floating_point():
        return False
    run, held = traced.references.own(later).run, mine != 0
    for other in run.groups.get(event_key(event), ()):
        theirs = other.output
        if theirs.shape != mine.shape:
            continue
        share = int(held.sum()) * run.length == int((theirs != 0).sum()) * sizes.slots
        if share and bool(held.any()) and is_close(mine[held], theirs[held]):
            return True
    return False


def is_in_any_order(traced: TracedCase, event: Event) -> bool:
    """Whether `event` counts as right only since a reference holds its numbers somewhere."""
    if event.index not in traced.right or not event.output.is_floating_point():
        return False
    largest = event.output.max() if event.output.numel() else event.output
    references = list(traced.references.for_step(event.step))
    if not references or event.operation in MOVES or not references[-1].sizes.plain:
        return False
    own = references[-1]
    return own.sizes.fed == 1 and not _holds_without_axis(own, event, largest)
