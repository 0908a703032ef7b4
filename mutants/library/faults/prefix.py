"""Wrong sharing: a prefix that rows or forks share is written to, or copied only in part."""

from typing import Any

from kvfuzz.case.schedule import Crop, Fork, Reorder, Switch
from kvfuzz.subjects.zoo.storage.prefix import Shared
from mutants.mutant import mutant, steps

NEEDS = {"cache": ("prefix",), "mix": ("uniform", "alternating")}
REPEATED = steps(1, Reorder((0, 0)), 1, rows=2, cache="prefix")


@mutant(".storage.prefix:Prefix.owned", site="0.cache", witness=REPEATED)
def is_not_copied_on_write(real):
    """A call writes into storage that other rows or forks share, without copying it first."""
    return lambda self, row: row


@mutant(".storage.prefix:Prefix.reorder", site="0.cache", witness=REPEATED)
def has_one_owner_when_a_row_comes_twice(real):
    """A row that reorder repeats counts as one owner: both copies write to the same storage."""

    def reorder(self, rows):
        real(self, rows)
        for row in {id(row): row for row in self.rows}.values():
            row.owners -= sum(other is row for other in self.rows) - 1

    return reorder


@mutant(".storage.prefix:Prefix.owned", site="1.cache", witness=REPEATED, needs={"layers": (2, 3)})
def is_copied_for_the_first_layer_alone(real):
    """Copy on write copies the first layer only; the other layers stay shared."""

    def owned(self, row):
        if row.owners == 1:
            return row
        copied = real(self, row)
        return Shared({**row.layers, 0: copied.layers[0]})

    return owned


@mutant(
    ".storage.prefix:Prefix.make_room",
    site="0.cache",
    witness=REPEATED,
    seen_in="waybarrios/vllm-mlx#311",
)
def is_copied_one_slot_short(real):
    """Copy on write leaves out the last shared slot."""

    def make_room(self, start, count, places):
        shared = list(self.rows)
        real(self, start, count, places)
        for old, new in zip(shared, self.rows, strict=True):
            for layer in new.layers.values() if new is not old and start else ():
                layer[:, :, start - 1] = 0

    return make_room


@mutant(
    ".storage.prefix:Prefix.copy",
    needs={"cache": ("prefix",)},
    equivalent="the first write would make the same copy",
)
def is_copied_when_it_is_forked(real):
    """A fork copies its rows at once instead of at the first write."""

    def copy(self):
        copied = real(self)
        copied.rows = [copied.owned(row) for row in copied.rows]
        return copied

    return copy


HIT = steps(3, Fork(), Crop(2), 1, Switch(0), 1, cache="prefix")


@mutant(
    ".storage.prefix:Prefix.crop",
    ".storage.prefix:Prefix.owned",
    site="0.cache",
    witness=HIT,
    both=True,
)
def a_hit_writes_over_what_is_stored(crop, owned):
    """A copy of the first tokens of a stored prefix is continued in the storage of that prefix."""
    cut: list[Any] = []

    def cropping(self, length, places):
        crop(self, length, places)
        cut.append(self)

    return cropping, lambda self, row: row if any(self is one for one in cut) else owned(self, row)


@mutant(
    ".operations:copy",
    ".operations:crop",
    site="0.cache",
    witness=steps(3, Fork(), Crop(1), 1, Switch(0), 1, cache="static"),
    needs={"cache": ("concatenated", "static"), "mix": ("uniform",)},
    both=True,
)
def a_hit_begins_at_the_second_token(copy, crop):
    """A copy of the first tokens of a stored prefix holds those from the second one on."""
    copies: list[Any] = []

    def copying(cache):
        copied = copy(cache)
        copies.append(copied)
        return copied

    def cropping(cache, count):
        if any(cache is one for one in copies):
            cache.storage.change(lambda tensor: tensor.roll(-1, 2))
        return crop(cache, count)

    return copying, cropping
