"""Wrong reorder: the cache gets other rows than asked for, or moves only some of its parts."""

import torch

from kvfuzz.case.schedule import Padded, Reorder
from mutants.mutant import mutant, steps

NEEDS = {"cache": ("concatenated", "static", "paged", "prefix"), "mix": ("uniform", "alternating")}
SWAPPED = steps(1, Reorder((1, 0)), 1, rows=2)


def _permutes(rows, batch):
    return sorted(rows.tolist()) == list(range(batch))


def _selects(rows):
    """Whether `rows` repeats no row, and leaves out one before its last."""
    return len(set(rows.tolist())) == len(rows) <= int(rows.max())


def _unmoved(rows, batch):
    """Returns as many row numbers as `rows` has, in their old order."""
    return torch.arange(len(rows)) % batch


def _batch(cache):
    storage = cache.storage
    rows = getattr(storage, "tables", None) or getattr(storage, "rows", None)
    return len(rows or storage.keys[0])


@mutant(".operations:reorder", site="0.cache", witness=SWAPPED)
def takes_a_permutation_for_no_change(real):
    """reorder ignores a permutation: rows stay in their old order."""
    return lambda cache, rows: cache if _permutes(rows, _batch(cache)) else real(cache, rows)


@mutant(".operations:reorder", site="0.cache", witness=steps(1, Reorder((1, 2, 0)), 1, rows=3))
def goes_the_other_way(real):
    """reorder applies the inverse of a permutation: old row i becomes row rows[i]."""
    return lambda cache, rows: real(
        cache, rows.argsort() if _permutes(rows, _batch(cache)) else rows
    )


@mutant(".operations:reorder", site="0.cache", witness=SWAPPED)
def of_two_rows_moves_one(real):
    """reorder leaves the last of several rows in place."""

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
    """reorder moves the keys, but not the values."""

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
    """reorder skips the last layer."""

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
    """reorder moves keys and values, but not the positions and padding of each row."""

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
    """reorder moves keys and values, but not the state of the recurrent layer."""
    return lambda history, rows: real(history, _unmoved(rows, len(history[0].hidden)))


@mutant(".operations:reorder", site="0.cache", witness=steps(1, Reorder((1,)), 1, rows=2))
def takes_the_first_rows_for_the_selected(real):
    """A selection of fewer rows keeps the first ones, whichever were asked for."""

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
    """A selection frees the blocks of the rows that stay, not those of the rows that go."""

    def reorder(self, rows):
        free = list(self.free)
        real(self, rows)
        if _selects(rows):
            self.free = free + [block for table in self.tables for block in table]

    return reorder


@mutant(".operations:reorder", site="0.cache", witness=steps(1, Reorder((0, 0)), 1, rows=2))
def takes_the_next_row_for_a_repeated_one(real):
    """In place of a repeated row, reorder returns the row after it."""

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
    """A repeated row shares its blocks with the first copy, and both write to them."""

    def reorder(self, rows):
        if len(set(rows.tolist())) == len(rows):
            real(self, rows)
        else:
            self.tables = [list(self.tables[row]) for row in rows.tolist()]

    return reorder
