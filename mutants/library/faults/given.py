"""Optional arguments: a call misreads the positions or the mask that it is given, or ignores
them."""

import torch

from kvfuzz.case.schedule import Padded
from mutants.mutant import mutant, steps

NEEDS = {"cache": ("concatenated", "static", "paged", "prefix"), "mix": ("uniform", "alternating")}
TOLD = ("mask", "positions")


@mutant("placed", site="position", witness=steps(Padded(2, "left", (1,)), given=TOLD))
def positions_make_way_for_slot_numbers(real):
    """A call ignores the positions that it is given and uses slot numbers."""

    def placed(before, length, tokens, mask, given):
        if given is not None:
            given = torch.arange(length, length + tokens.shape[1]).expand_as(tokens)
        return real(before, length, tokens, mask, given)

    return placed


@mutant("placed", site="position", witness=steps(1, 1, given=("positions",)))
def positions_are_taken_for_offsets(real):
    """The cache length is added to the given positions, which already include it."""

    def placed(before, length, tokens, mask, given):
        return real(before, length, tokens, mask, given if given is None else given + length)

    return placed


@mutant("placed", site="position", witness=steps(Padded(2, "left", (0, 1)), rows=2, given=TOLD))
def positions_of_the_first_row_are_read_for_all(real):
    """All rows get the positions that are given for the first row."""

    def placed(before, length, tokens, mask, given):
        return real(before, length, tokens, mask, given if given is None else given[:1] + 0 * given)

    return placed


@mutant(
    "placed",
    site="position",
    witness=steps(Padded(2, "left", (1,)), 1),
    seen_in="TransformerLensOrg/TransformerLens#772",
)
def mask_is_read_from_its_beginning(real):
    """A later call reads the first columns of the mask as those of its new tokens."""

    def placed(before, length, tokens, mask, given):
        if mask is not None:
            mask = torch.cat((mask[:, :length], mask[:, : tokens.shape[1]]), dim=1)
        return real(before, length, tokens, mask, given)

    return placed


@mutant("admit", site="0.attention", witness=steps(2, 1, given=("mask",)))
def mask_hides_what_is_there(real):
    """A later call with a mask that has no padding hides the first slot of every row."""

    def admit(cache, tokens, mask, positions):
        real(cache, tokens, mask, positions)
        if mask is not None and cache.length and bool(mask.all()):
            cache.places = cache.places.clone()
            cache.places[:, 0] += 1 << 20

    return admit
