"""Wrong sharing: a prefix that rows or forks share is written to, or copied only in part."""

from kvfuzz.case.schedule import Reorder
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
