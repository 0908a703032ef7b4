"""Wrong side inputs: a row reads the side input of another one, or one of before."""

from typing import Any

import torch

from kvfuzz.case.schedule import Join, New, Reorder, Reset, Restore, Rollback
from mutants.mutant import mutant, steps

NEEDS = {"mix": ("cross",), "layers": (2, 3)}
CROSS: dict[str, Any] = {"mix": "cross"}


@mutant("cross_of", site="1.attention", witness=steps(1, rows=2, **CROSS))
def gives_every_row_that_of_the_first(real):
    """All rows read the side input of the first one."""
    return lambda config, weights, sides: real(config, weights, sides[:1].expand_as(sides))


@mutant("cross_of", site="1.attention", witness=steps(1, **CROSS))
def loses_the_last_state(real):
    """The last state of each side input is left out."""

    def cross(config, weights, sides):
        keys, values = real(config, weights, sides)
        return keys[:, :, :-1], values[:, :, :-1]

    return cross


@mutant("take_sides", site="1.attention", witness=steps(1, Reset(), 1, **CROSS))
def a_reset_keeps_it(real):
    """The cross cache of a row is kept, although another sequence begins."""

    stored: list[tuple[torch.Tensor, torch.Tensor]] = []

    def take(config, weights, cache, sides):
        if stored and len(stored[0][0]) == len(sides):
            cache.cross = stored[0]
            return
        real(config, weights, cache, sides)
        if cache.cross is not None:
            stored[:] = [cache.cross]

    return take


@mutant(
    "cross_of",
    site="1.attention",
    witness=steps(1, New(1), 1, **CROSS),
    both=True,
)
def the_next_cache_takes_that_of_the_first(real):
    """The keys and values are computed once and kept on the model, for every cache of as many
    rows."""
    kept = {}

    def cross(config, weights, sides):
        key = (len(sides), weights.token.data_ptr())
        if key not in kept:
            kept[key] = real(config, weights, sides)
        return kept[key]

    return cross


@mutant(
    ".operations:reorder", site="1.attention", witness=steps(1, Reorder((1, 0)), 1, rows=2, **CROSS)
)
def stays_where_rows_move(real):
    """The rows of a cache are reordered, and their side inputs stay where they are."""

    def reorder(cache, rows):
        before = cache.cross
        reordered = real(cache, rows)
        if before is not None:
            count = torch.arange(len(rows)) % len(before[0])
            reordered.cross = before[0][count], before[1][count]
        return reordered

    return reorder


@mutant(
    ".operations:join",
    site="1.attention",
    witness=steps(New(1), 1, New(1), 1, Join(0), 1, rows=2, **CROSS),
)
def joined_rows_read_those_of_the_others(real):
    """Rows that join a batch read the side inputs of the rows that are there."""

    def join(cache, other, device):
        own = cache.cross
        joined = real(cache, other, device)
        if own is not None:
            rows = torch.arange(len(joined.cross[0])) % len(own[0])
            joined.cross = own[0][rows], own[1][rows]
        return joined

    return join


@mutant(".operations:load", site="1.attention", witness=steps(1, Restore(), 1, rows=2, **CROSS))
def a_restore_gives_them_to_other_rows(real):
    """The side inputs of a loaded cache are in the reverse order of its rows."""

    def load(config, state):
        loaded = real(config, state)
        if loaded.cross is not None:
            loaded.cross = tuple(one.flip(0) for one in loaded.cross)
        return loaded

    return load


@mutant("look_aside", site="1.attention", witness=steps(1, 1, rows=2, **CROSS))
def later_calls_read_that_of_the_next_row(real):
    """Calls on a filled cache read the side input of the next row."""

    def look(config, weights, layer, normed, cache, note):
        before = cache.cross
        if cache.length:
            cache.cross = tuple(one.roll(1, 0) for one in before)
        found = real(config, weights, layer, normed, cache, note)
        cache.cross = before
        return found

    return look


@mutant(
    "empty_rows",
    site="1.attention",
    witness=steps(2, Rollback((0, 2)), 1, rows=2, **CROSS),
    needs={"cache": ("concatenated", "static", "paged", "prefix")},
)
def a_row_rolled_back_to_nothing_keeps_it(real):
    """A row that begins anew keeps the side input of the text before, since other rows do."""
    return lambda cache, sides: torch.zeros_like(real(cache, sides))
