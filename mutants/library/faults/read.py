"""Wrong read: attention reads more, fewer or other entries than were stored."""

import torch

from kvfuzz.subjects.zoo.places import Places
from kvfuzz.subjects.zoo.storage.paged import BLOCK
from mutants.mutant import mutant, steps

NEEDS = {"cache": ("static", "paged", "prefix"), "mix": ("uniform", "alternating")}


@mutant("visible", site="1.attention", witness=steps(2, cache="static"))
def goes_one_past_the_end(real):
    """The last token of a call also attends to the slot after its own, which is empty."""

    def visible(config, index, slots):
        seen = real(config, index, slots).clone()
        last = index.amax(-1)[..., None]
        beyond = slots == last + 1
        seen[..., -1, :] |= beyond if seen.dim() == 2 else beyond[:, None]
        return seen

    return visible


@mutant(
    "visible",
    site="1.attention",
    witness=steps(1, 1, cache="static"),
    seen_in="huggingface/transformers#30400",
    needs={"mix": ("uniform",), "window": (None,)},
)
def of_one_token_takes_empty_slots_too(real):
    """A call of one token has no mask: it attends to all slots, empty ones too."""

    def visible(config, index, slots):
        seen = real(config, index, slots)
        return torch.ones_like(seen) if index.shape[-1] == 1 else seen

    return visible


@mutant(
    ".storage.paged:Paged.read",
    site="0.cache",
    witness=steps(5, cache="paged"),
    needs={"cache": ("paged",)},
)
def takes_the_second_block_first(real):
    """The first two blocks of every row are read in swapped order."""

    def swapped(x):
        first, second, rest = x.split((BLOCK, BLOCK, x.shape[2] - 2 * BLOCK), dim=2)
        return torch.cat((second, first, rest), dim=2)

    def read(self, layer):
        keys, values = real(self, layer)
        if keys.shape[2] < 2 * BLOCK:
            return keys, values
        return swapped(keys), swapped(values)

    return read


@mutant(
    ".storage.paged:Paged.read",
    site="0.cache",
    witness=steps(2, rows=2, cache="paged"),
    needs={"cache": ("paged",)},
)
def takes_the_table_of_the_first_row(real):
    """Every row reads the blocks of the first row."""

    def read(self, layer):
        keys, values = real(self, layer)
        return keys[:1].expand_as(keys), values[:1].expand_as(values)

    return read


@mutant(
    "fetch",
    site="0.cache",
    witness=steps(1),
    needs={"cache": ("concatenated", "static", "paged", "prefix"), "kv_heads": (2,)},
)
def takes_the_values_of_the_other_head(real):
    """Each head reads the values of the other head."""

    def fetch(cache, layer):
        keys, values = real(cache, layer)
        return keys, values.roll(1, 1)

    return fetch


@mutant(
    ".storage.paged:Paged.read",
    site="0.cache",
    witness=steps(4, 1, rows=2, cache="paged"),
    seen_in="tanishqkumar/ssd#23",
    needs={"cache": ("paged",)},
)
def passes_the_table_by(real):
    """Block tables are ignored: rows read consecutive blocks of the pool, as many each as they
    have."""

    def read(self, layer):
        tables, blocks = self.tables, len(self.tables[0])
        lying = [range(row * blocks, (row + 1) * blocks) for row in range(len(tables))]
        self.tables = [[block % len(self.keys[layer]) for block in row] for row in lying]
        found = real(self, layer)
        self.tables = tables
        return found

    return read


@mutant(
    "attend",
    needs={"cache": ("concatenated", "static", "paged")},
    equivalent="attention does not depend on the order of its entries: only their positions "
    "distinguish them",
)
def takes_entries_and_their_positions_backwards(real):
    """Keys, values and their positions are read in reverse order."""

    def attend(config, weights, layer, query, keys, values, index):
        here = index if isinstance(index, Places) else Places(index, torch.arange(keys.shape[2]))
        backwards = here._replace(entries=here.entries.flip(-1))
        return real(config, weights, layer, query, keys.flip(2), values.flip(2), backwards)

    return attend
