"""Wrong rollback: rows that drop different numbers of tokens drop others, or continue elsewhere."""

import torch

from kvfuzz.case.schedule import Rollback
from kvfuzz.subjects.zoo.places import NOWHERE
from mutants.mutant import mutant, steps

NEEDS = {
    "cache": ("concatenated", "static", "paged", "prefix"),
    "mix": ("uniform", "alternating", "shared_kv"),
}
UNEQUAL = steps(4, Rollback((1, 2)), 1, rows=2)


@mutant(".operations:rollback", site="position", witness=UNEQUAL)
def drops_as_many_of_every_row(real):
    """Every row drops as many tokens as the one that drops the most."""
    return lambda cache, counts: real(cache, counts.max().expand_as(counts))


@mutant(".operations:rollback", site="position", witness=UNEQUAL)
def drops_the_least_of_every_row(real):
    """Every row drops as many tokens as the one that drops the fewest."""
    return lambda cache, counts: real(cache, counts.min().expand_as(counts))


@mutant(".operations:rollback", site="position", witness=UNEQUAL)
def is_off_by_one(real):
    """A row that drops tokens drops one too few."""
    return lambda cache, counts: real(cache, (counts - 1).clamp_min(0))


@mutant(".operations:rollback", site="position", witness=UNEQUAL)
def takes_the_counts_of_other_rows(real):
    """The counts are read in the reverse order of the rows."""
    return lambda cache, counts: real(cache, counts.flip(0))


@mutant("placed", site="position", witness=UNEQUAL)
def leaves_positions_of_the_longest_row(real):
    """All rows continue at the position of the longest one."""

    def placed(before, length, tokens, mask, given):
        if mask is None and given is None and before is not None:
            longest = (before != NOWHERE).sum(1).max()
            given = (longest + torch.arange(tokens.shape[1])).expand_as(tokens)
        return real(before, length, tokens, mask, given)

    return placed


@mutant(".operations:rollback", "entry_places", site="0.attention", witness=UNEQUAL)
def leaves_what_was_dropped_in_sight(rollback, real):
    """Dropped tokens of a row stay in sight, as long as another row has a token there."""
    rolled = []

    def rolling(cache, counts):
        rolled.append(True)
        return rollback(cache, counts)

    def places(cache, layer, count):
        found = real(cache, layer, count)
        if not rolled or found is None:
            return found
        fed = torch.arange(count) < cache.places.shape[1]
        return found.masked_fill((found == NOWHERE) & fed, 0)

    return rolling, places
