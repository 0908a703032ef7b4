"""Wrong crop: crop drops the wrong slots, or leaves something of them behind."""

import torch

from kvfuzz.case.schedule import Crop, Padded
from kvfuzz.subjects.zoo.recurrence import State
from mutants.mutant import mutant, steps

NEEDS = {"cache": ("concatenated",), "mix": ("uniform", "alternating")}
ROLLED = steps(3, Crop(1), 1)
RING = {"cache": ("ring",), "window": (3, 5), "mix": ("uniform", "alternating")}


@mutant(".storage.concatenated:Concatenated.crop", site="0.cache", witness=ROLLED)
def keeps_one_too_many(real):
    """crop keeps one slot too many in storage, but sets the right length."""
    return lambda self, length, places: real(self, length + 1 if length else 0, places)


@mutant(".storage.concatenated:Concatenated.crop", site="0.cache", witness=ROLLED)
def drops_one_too_many(real):
    """crop drops one slot too many from storage, but sets the right length."""
    return lambda self, length, places: real(self, max(length - 1, 0), places)


@mutant(".storage.concatenated:Concatenated.crop", site="0.cache", witness=ROLLED)
def drops_the_oldest_values(real):
    """crop drops the newest keys, but the oldest values."""

    def crop(self, length, places):
        values = [v[:, :, v.shape[2] - length :] for v in self.values]
        real(self, length, places)
        self.values = values

    return crop


@mutant(
    ".storage.concatenated:Concatenated.crop",
    site="1.cache",
    witness=ROLLED,
    needs={"layers": (2, 3)},
)
def forgets_the_last_layer(real):
    """crop skips the last layer."""

    def crop(self, length, places):
        keys, values = self.keys[-1], self.values[-1]
        real(self, length, places)
        if length:
            self.keys[-1], self.values[-1] = keys, values

    return crop


@mutant(
    ".operations:crop",
    site="0.cache",
    witness=steps(2, Crop(3), 1),
    seen_in="huggingface/transformers#47433",
)
def of_more_than_there_is_leaves_one(real):
    """Cropping more slots than the cache holds leaves the first one in storage."""

    def crop(cache, count):
        stale = None
        if count > cache.length:
            stale = [
                (k[:, :, :1], v[:, :, :1]) for k, v in zip(cache.keys, cache.values, strict=True)
            ]
        cache = real(cache, count)
        for layer, pair in enumerate(stale or ()):
            cache.keys[layer], cache.values[layer] = pair
        return cache

    return crop


@mutant(
    ".operations:crop",
    "position_index",
    site="position",
    witness=ROLLED,
    needs={"cache": ("concatenated", "static", "paged", "prefix"), "mix": ("uniform",)},
)
def leaves_positions_where_they_were(crop, position_index):
    """After a crop, positions continue from the length before it."""
    lost = 0

    def counting_crop(cache, count):
        nonlocal lost
        lost += min(count, cache.length)
        return crop(cache, count)

    def index(config, cache, tokens):
        return (position_index(config, cache, tokens) + lost).clamp(max=config.max_length - 1)

    return counting_crop, index


@mutant(
    ".operations:crop",
    site="position",
    witness=steps(Padded(3, "left", (1,)), Crop(1), 1),
    needs={"cache": ("concatenated", "static", "paged", "prefix"), "mix": ("uniform",)},
)
def forgets_which_slots_are_padding(real):
    """crop forgets which slots are padding: all remaining ones count as real tokens."""

    def crop(cache, count):
        cache = real(cache, count)
        cache.places = None
        return cache

    return crop


@mutant(
    ".recurrence:crop",
    site="0.attention",
    witness=steps(2, Crop(1), 1, mix="recurrent"),
    needs={"cache": ("concatenated", "static"), "mix": ("recurrent",)},
    seen_in="vllm-project/tpu-inference#3178",
)
def leaves_the_recurrent_state(real):
    """crop rolls back keys and values, but not the state of the recurrent layer."""
    return lambda history, count: history


@mutant(
    ".storage.ring:Ring.crop",
    site="0.attention",
    witness=steps(3, Crop(1), 1, cache="ring", window=3),
    needs=RING,
    seen_in="ml-explore/mlx-swift-lm#584",
)
def leaves_its_entries_in_the_ring(real):
    """Cropped entries stay in the ring: attention sees them next to the tokens that replace
    them."""

    def crop(self, length, places):
        held = self.held
        real(self, length, places)
        if length:
            self.held = held

    return crop


@mutant(
    ".storage.paged:Paged.crop",
    site="0.cache",
    witness=steps(3, Crop(1), 1, cache="paged"),
    needs={"cache": ("paged",), "mix": ("uniform", "alternating")},
)
def frees_a_block_that_is_in_use(real):
    """crop frees the last block of each row, which the row still uses."""

    def crop(self, length, places):
        real(self, length, places)
        for table in self.tables:
            self.free += table[-1:]

    return crop


@mutant(
    ".storage.paged:Paged.crop",
    site="0.cache",
    witness=steps(5, Crop(2), 3, 1, cache="paged"),
    needs={"cache": ("paged",), "mix": ("uniform", "alternating")},
)
def leaves_a_freed_block_in_the_table(real):
    """crop frees the blocks that it empties, but leaves them in the row's block table."""

    def crop(self, length, places):
        tables = [list(table) for table in self.tables]
        real(self, length, places)
        self.tables = tables

    return crop


@mutant(
    ".operations:crop",
    "entry_places",
    site="1.attention",
    witness=steps(3, Crop(2), 1, cache="static"),
    needs={"cache": ("static",), "mix": ("uniform",)},
)
def leaves_its_slots_in_sight(crop, entry_places):
    """Attention still sees cropped slots until new tokens overwrite them."""
    longest = 0

    def watching_crop(cache, count):
        nonlocal longest
        longest = max(longest, cache.length)
        return crop(cache, count)

    def places(cache, layer, count):
        found = entry_places(cache, layer, count)
        if not longest or found is not None:
            return found
        slots = torch.arange(count)
        return torch.where(slots < longest, 0, slots).expand(cache.keys[layer].shape[0], count)

    return watching_crop, places


@mutant(
    ".storage.concatenated:Concatenated.crop",
    site="0.cache",
    witness=ROLLED,
    seen_in="paiml/aprender#2014",
)
def empties_the_cache(real):
    """crop drops all slots from storage, but sets the length that should remain."""
    return lambda self, length, places: real(self, 0, places)


@mutant(
    ".recurrence:crop",
    site="0.attention",
    witness=steps(2, Crop(1), 1, mix="recurrent"),
    seen_in="ekryski/mlx-swift-lm#218",
    needs={"cache": ("concatenated", "static"), "mix": ("recurrent",)},
)
def leaves_the_tail_of_the_convolution(real):
    """crop rolls back the hidden state of the recurrent layer, but not the inputs that its
    convolution keeps."""

    def crop(history, count):
        kept = real(history, count)
        return [*kept[:-1], State(history[-1].recent, kept[-1].hidden)]

    return crop


@mutant(
    ".storage.static:Static.crop",
    needs={"cache": ("static",)},
    equivalent="slots past the length are hidden until they are overwritten",
)
def wipes_what_it_drops(real):
    """crop fills the dropped slots with zeros."""

    def crop(self, length, places):
        real(self, length, places)
        for tensor in (*self.keys, *self.values):
            tensor[:, :, length:] = 0

    return crop
