"""Wrong reorder: rows of the cache are not those that were asked for, or not in all its parts."""

import torch

from kvfuzz.case.schedule import Padded, Reorder
from mutants.mutant import mutant, steps

NEEDS = {"cache": ("concatenated", "static", "paged", "prefix"), "mix": ("uniform", "alternating")}
SWAPPED = steps(1, Reorder((1, 0)), 1, rows=2)


def _permutes(rows, batch):
    return sorted(rows.tolist()) == list(range(batch))


def _selects(rows):
    """Whether a row is left out, from among those before it."""
    return len(set(rows.tolist())) == len(rows) <= int(rows.max())


def _unmoved(rows, batch):
    """As many rows as `rows` has, where they were."""
    return torch.arange(len(rows)) % batch


def _batch(cache):
    storage = cache.storage
    rows = getattr(storage, "tables", None) or getattr(storage, "rows", None)
    return len(rows or storage.keys[0])


@mutant(".operations:reorder", site="0.cache", witness=SWAPPED)
def takes_a_permutation_for_no_change(real):
    """Rows that all stay are left in their order."""
    return lambda cache, rows: cache if _permutes(rows, _batch(cache)) else real(cache, rows)


@mutant(".operations:reorder", site="0.cache", witness=steps(1, Reorder((1, 2, 0)), 1, rows=3))
def goes_the_other_way(real):
    """Row rows[i] becomes row i of the old: a permutation is inverted."""
    return lambda cache, rows: real(
        cache, rows.argsort() if _permutes(rows, _batch(cache)) else rows
    )


@mutant(".operations:reorder", site="0.cache", witness=SWAPPED)
def of_two_rows_moves_one(real):
    """The last of several rows is the one that it was."""

    def reorder(cache, rows):
        rows = rows.clone()
        if len(rows) == _batch(cache) > 1:
            rows[-1] = len(rows) - 1
        return real(cache, rows)

    return reorder


@mutant(
    ".storage.concatenated:Concatenated.reorder",
    site="0.cache",
    witness=SWAPPED,
    needs={"cache": ("concatenated",)},
)
def moves_keys_alone(real):
    """The values stay in the rows where they were."""

    def reorder(self, rows):
        kept = [values[_unmoved(rows, len(values))] for values in self.values]
        real(self, rows)
        self.values = kept

    return reorder


@mutant(
    ".storage.static:Static.reorder",
    site="1.cache",
    witness=steps(1, Reorder((1, 0)), 1, rows=2, cache="static"),
    needs={"cache": ("static",), "layers": (2, 3)},
)
def forgets_the_last_layer(real):
    """All layers are reordered but the last."""

    def reorder(self, rows):
        still = _unmoved(rows, len(self.keys[-1]))
        keys, values = self.keys[-1][still], self.values[-1][still]
        real(self, rows)
        self.keys[-1], self.values[-1] = keys, values

    return reorder


@mutant(
    ".operations:reorder",
    site="position",
    witness=steps(Padded(2, "left", (0, 1)), Reorder((1, 0)), 1, rows=2),
)
def leaves_padding_in_its_rows(real):
    """Keys and values are reordered, and what is known of padding is not."""

    def reorder(cache, rows):
        places = cache.places
        cache = real(cache, rows)
        if places is not None:
            cache.places = places[_unmoved(rows, len(places))]
        return cache

    return reorder


@mutant(
    ".recurrence:reorder",
    site="0.attention",
    witness=steps(1, Reorder((1, 0)), 1, rows=2, mix="recurrent"),
    seen_in="huggingface/transformers#29730",
    needs={"mix": ("recurrent",), "cache": ("concatenated", "static", "ring")},
)
def leaves_the_recurrent_state_in_its_rows(real):
    """Keys and values are reordered, the state of the recurrent layer is not."""
    return lambda history, rows: real(history, _unmoved(rows, len(history[0].hidden)))


@mutant(".operations:reorder", site="0.cache", witness=steps(1, Reorder((1,)), 1, rows=2))
def takes_the_first_rows_for_the_selected(real):
    """A selection of fewer rows keeps the first ones, whichever they should be."""

    def reorder(cache, rows):
        return real(cache, torch.arange(len(rows)) if _selects(rows) else rows)

    return reorder


@mutant(
    ".storage.paged:Paged.reorder",
    site="0.cache",
    witness=steps(1, Reorder((1,)), 1, rows=2, cache="paged"),
    needs={"cache": ("paged",)},
)
def frees_the_selected_rows(real):
    """A selection gives back the blocks of the rows that stay, not of those that go."""

    def reorder(self, rows):
        free = list(self.free)
        real(self, rows)
        if _selects(rows):
            self.free = free + [block for table in self.tables for block in table]

    return reorder


@mutant(".operations:reorder", site="0.cache", witness=steps(1, Reorder((0, 0)), 1, rows=2))
def takes_the_next_row_for_a_repeated_one(real):
    """Where a row comes again, the one after it comes in its place."""

    def reorder(cache, rows):
        chosen = []
        for row in rows.tolist():
            chosen.append((row + 1) % _batch(cache) if row in chosen else row)
        return real(cache, torch.tensor(chosen))

    return reorder


@mutant(
    ".storage.paged:Paged.reorder",
    site="0.cache",
    witness=steps(1, Reorder((0, 0)), 1, rows=2, cache="paged"),
    needs={"cache": ("paged",)},
)
def shares_the_blocks_of_a_repeated_row(real):
    """A row that comes twice has the same blocks both times, and both are written to."""

    def reorder(self, rows):
        if len(set(rows.tolist())) == len(rows):
            real(self, rows)
        else:
            self.tables = [list(self.tables[row]) for row in rows.tolist()]

    return reorder
