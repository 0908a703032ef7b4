"""Wrong join: the rows of two caches in one are others, or continue elsewhere."""

import torch

from kvfuzz.case.schedule import Join, New, Switch
from kvfuzz.subjects.zoo.places import NOWHERE
from mutants.mutant import mutant, steps

LONGER = steps(New(1), 2, New(1), 1, Join(0), 1, rows=2)
SHORTER = steps(New(1), 1, New(1), 2, Switch(0), Join(1), 1, rows=2)
EVEN = steps(New(1), 2, New(1), 2, Join(0), 1, rows=2)
STACKED = {"cache": ("concatenated", "static")}


@mutant(".operations:join", site="0.cache", witness=EVEN)
def puts_the_other_rows_first(real):
    """The rows of the other cache come before the own ones, as their tokens do not."""

    def join(cache, other, device):
        own = cache.storage.batch
        joined = real(cache, other, device)
        rows = torch.arange(joined.storage.batch).roll(-own)
        joined.storage.reorder(rows)
        joined.places = None if joined.places is None else joined.places[rows]
        joined.history = reordered(joined.history, rows)
        return joined

    return join


def reordered(history, rows):
    """Returns the states of a recurrent layer in the order of `rows`."""
    return [type(state)(state.recent[rows], state.hidden[rows]) for state in history]


@mutant(".operations:joined_places", site="position", witness=LONGER)
def continues_all_rows_at_the_longest(real):
    """All rows continue at the length of the longest one: what a shorter row lacks counts as
    text."""

    def places(cache, other, length, device):
        found = real(cache, other, length, device)
        return None if found is None else torch.arange(length, device=device).expand(found.shape)

    return places


@mutant(".operations:joined_places", "placed", site="position", witness=SHORTER)
def continues_all_rows_at_the_own_length(real, placed):
    """The rows of the other cache continue at the position of the first row."""
    joined = []

    def noting(cache, other, length, device):
        joined.append(True)
        return real(cache, other, length, device)

    def places(before, length, tokens, mask, given):
        if joined and mask is None and given is None and before is not None:
            given = (before[:1] != NOWHERE).sum(1) + torch.arange(tokens.shape[1])
            given = given.expand_as(tokens)
        return placed(before, length, tokens, mask, given)

    return noting, places


@mutant(".operations:joined_places", "entry_places", site="0.attention", witness=LONGER)
def leaves_what_a_shorter_row_lacks_in_sight(joined_places, real):
    """The empty slots behind a shorter row are in sight of its later tokens."""
    joined = []

    def noting(cache, other, length, device):
        joined.append(True)
        return joined_places(cache, other, length, device)

    def places(cache, layer, count):
        found = real(cache, layer, count)
        if not joined or found is None:
            return found
        fed = torch.arange(count) < cache.places.shape[1]
        return found.masked_fill((found == NOWHERE) & fed, 0)

    return noting, places


@mutant(
    ".storage.base:LayerTensors.join",
    site="0.cache",
    witness=EVEN,
    needs={**STACKED, "mix": ("uniform",)},
)
def takes_the_keys_alone(real):
    """The keys of the other rows are joined; their values are those of the own rows."""

    def join(storage, other, length):
        own = [value.clone() for value in storage.values]
        real(storage, other, length)
        for value, mine in zip(storage.values, own, strict=True):
            batch, slots = len(mine), min(mine.shape[2], value.shape[2])
            rows = torch.arange(len(value) - batch) % batch
            value[batch:, :, :slots] = mine[rows, :, :slots]

    return join


@mutant(
    ".storage.base:LayerTensors.join",
    site="1.cache",
    witness=EVEN,
    needs={**STACKED, "mix": ("uniform",)},
)
def forgets_the_last_layer(real):
    """The last layer keeps the own rows alone, and repeats them for the others."""

    def join(storage, other, length):
        own = [tensors[-1].clone() for tensors in (storage.keys, storage.values)]
        real(storage, other, length)
        for tensors, mine in zip((storage.keys, storage.values), own, strict=True):
            last, batch = tensors[-1], len(mine)
            rows = torch.arange(len(last) - batch) % batch
            slots = min(mine.shape[2], last.shape[2])
            last[batch:, :, :slots] = mine[rows, :, :slots]

    return join


@mutant(
    ".storage.paged:Paged.join",
    site="0.cache",
    witness=steps(New(1), 2, New(1), 2, Join(0), 1, rows=2, cache="paged"),
    needs={"cache": ("paged",)},
)
def keeps_the_block_numbers_of_the_other_pool(real):
    """The tables of the other rows are taken over with the block numbers of their own pool."""

    def join(storage, other, length):
        tables = [list(table) for table in other.tables]
        batch = len(storage.tables)
        real(storage, other, length)
        for table, theirs in zip(storage.tables[batch:], tables, strict=True):
            table[: len(theirs)] = theirs

    return join


@mutant(
    ".recurrence:join",
    site="0.attention",
    witness=steps(New(1), 2, New(1), 2, Join(0), 1, rows=2, mix="recurrent"),
    needs={"mix": ("recurrent",)},
)
def starts_the_recurrent_state_of_the_others_anew(real):
    """The other rows begin with an empty recurrent state."""

    def join(history, other):
        empty = [type(s)(torch.zeros_like(s.recent), torch.zeros_like(s.hidden)) for s in other]
        return real(history, empty)

    return join
