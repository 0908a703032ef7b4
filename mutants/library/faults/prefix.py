"""Wrong sharing: a prefix that several rows or forks own is written to, or copied in part."""

from kvfuzz.case.schedule import Reorder
from kvfuzz.subjects.zoo.storage.prefix import Shared
from mutants.mutant import mutant, steps

NEEDS = {"cache": ("prefix",), "mix": ("uniform", "alternating")}
REPEATED = steps(1, Reorder((0, 0)), 1, rows=2, cache="prefix")


@mutant(".storage.prefix:Prefix.owned", site="0.cache", witness=REPEATED)
def is_not_copied_on_write(real):
    """What others own too is written to."""
    return lambda self, row: row


@mutant(".storage.prefix:Prefix.reorder", site="0.cache", witness=REPEATED)
def has_one_owner_when_a_row_comes_twice(real):
    """A row that is repeated counts once, and both are written to the same place."""

    def reorder(self, rows):
        real(self, rows)
        for row in {id(row): row for row in self.rows}.values():
            row.owners -= sum(other is row for other in self.rows) - 1

    return reorder


@mutant(".storage.prefix:Prefix.owned", site="1.cache", witness=REPEATED, needs={"layers": (2, 3)})
def is_copied_for_the_first_layer_alone(real):
    """The copy of a writer shares all layers with the others but the first."""

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
    """The copy of a writer lacks the last slot that was shared."""

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
    equivalent="the writer would take the same copy later, before it writes",
)
def is_copied_when_it_is_forked(real):
    """A fork has rows of its own at once, not when one of the two writes."""

    def copy(self):
        copied = real(self)
        copied.rows = [copied.owned(row) for row in copied.rows]
        return copied

    return copy
