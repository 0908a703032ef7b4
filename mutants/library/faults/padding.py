"""Wrong padding: padding is attended to, counted as positions, or forgotten."""

import torch

from kvfuzz.case.schedule import Padded
from kvfuzz.subjects.zoo.places import NOWHERE
from mutants.mutant import mutant, steps

NEEDS = {"cache": ("concatenated", "static", "paged", "prefix"), "mix": ("uniform", "alternating")}
LEFT = Padded(3, "left", (1,))
RIGHT = Padded(3, "right", (1,))


def _new(mask, length):
    return mask[:, length:].bool()


def _with_new(mask, length, new):
    return torch.cat((mask[:, :length].bool(), new), dim=1)


@mutant("admit", site="position", witness=steps(LEFT), seen_in="huggingface/transformers#22382")
def is_taken_for_text(real):
    """The mask is ignored: padding is attended to and counted as positions."""
    return lambda cache, tokens, mask, positions: real(cache, tokens, None, positions)


@mutant("placed", site="position", witness=steps(LEFT, 1), seen_in="thu-nics/C2C#19")
def of_earlier_calls_is_forgotten(real):
    """A later call forgets which earlier slots are padding: all count as real tokens."""
    return lambda before, length, tokens, mask, given: real(None, length, tokens, mask, None)


@mutant("placed", site="position", witness=steps(LEFT), seen_in="huggingface/transformers#22069")
def is_counted_as_positions(real):
    """Padding is masked, but counts as positions: a token's position is its slot number."""

    def placed(before, length, tokens, mask, given):
        slots = torch.arange(length, length + tokens.shape[1]).expand_as(tokens)
        return real(before, length, tokens, mask, slots)

    return placed


@mutant("placed", site="position", witness=steps(LEFT))
def on_the_left_is_taken_for_text(real):
    """Padding on the left of a call counts as real tokens; only padding on the right is masked."""

    def placed(before, length, tokens, mask, given):
        if mask is not None:
            new = _new(mask, length).int().flip(1).cummax(1).values.flip(1).bool()
            mask = _with_new(mask, length, new)
        return real(before, length, tokens, mask, None)

    return placed


@mutant("placed", site="position", witness=steps(RIGHT, 1))
def on_the_right_is_taken_for_text(real):
    """Padding on the right of a call counts as real tokens; only padding on the left is masked."""

    def placed(before, length, tokens, mask, given):
        if mask is not None:
            new = _new(mask, length).int().cummax(1).values.bool()
            mask = _with_new(mask, length, new)
        return real(before, length, tokens, mask, None)

    return placed


@mutant("entry_places", site="0.attention", witness=steps(LEFT))
def in_front_of_a_row_is_seen(real):
    """Padding before the first token of a row is attended to, at position 0."""

    def places(cache, layer, count):
        found = real(cache, layer, count)
        if found is None:
            return found
        before = (found == NOWHERE).int().cumprod(1).bool()
        return found.masked_fill(before, 0)

    return places


@mutant("placed", site="position", witness=steps(Padded(2, "left", (0, 1)), rows=2))
def of_the_first_row_is_that_of_all(real):
    """All rows use the mask of the first row."""

    def placed(before, length, tokens, mask, given):
        mask = mask if mask is None else mask[:1].expand_as(mask)
        return real(before, length, tokens, mask, None)

    return placed


@mutant(
    "position_index",
    site="position",
    witness=steps(Padded(2, "left", (0, 1)), rows=2),
    seen_in="unslothai/unsloth#3699",
)
def leaves_all_rows_at_the_positions_of_the_first(real):
    """All rows get the positions of the first row, however much padding each has."""

    def index(config, cache, tokens):
        found = real(config, cache, tokens)
        return found if found.dim() == 1 else found[:1].expand_as(found)

    return index


@mutant(
    "placed",
    site="position",
    witness=steps(LEFT, 1),
    seen_in="mosaicml/examples#257",
)
def restarts_the_count_of_text(real):
    """With a mask, positions restart in every call: they count only the tokens of that call."""

    def placed(before, length, tokens, mask, given):
        if mask is None:
            return real(before, length, tokens, mask, given)
        counted = (_new(mask, length).cumsum(1) - 1).clamp(min=0)
        return real(before, length, tokens, mask, counted)

    return placed


@mutant(
    "admit",
    "entry_places",
    site="0.attention",
    witness=steps(Padded(2, "left", (1,)), 1),
    seen_in="OpenNMT/OpenNMT-py#2532",
)
def is_seen_on_decode(admit, entry_places):
    """In a decode step, earlier padding is attended to, at position 0."""
    single = False

    def watching_admit(cache, tokens, mask, positions):
        nonlocal single
        single = tokens.shape[1] == 1 and cache.length > 0
        admit(cache, tokens, mask, positions)

    def places(cache, layer, count):
        found = entry_places(cache, layer, count)
        if found is None or not single:
            return found
        earlier = torch.arange(count) < cache.length
        return found.masked_fill(earlier & (found == NOWHERE), 0)

    return watching_admit, places
