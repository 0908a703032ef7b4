"""Wrong window: attention sees too much or too little of the past, or the ring is written
wrongly."""

from dataclasses import replace
from typing import Any

import torch

from kvfuzz.case.schedule import Crop, Restore
from kvfuzz.subjects.zoo.places import NOWHERE
from kvfuzz.subjects.zoo.storage.ring import Arrivals
from mutants.library.faults.mask import is_later
from mutants.mutant import mutant, steps

NEEDS = {"window": (3, 5), "mix": ("uniform", "alternating")}
RING = {"cache": ("ring",)}
WHOLE = {"cache": ("concatenated", "static", "paged", "prefix")}
RINGED: dict[str, Any] = {"cache": "ring", "window": 3}


def _seen_through(real, change):
    """Returns `visible` with the window `change(window)`."""

    def visible(config, index, slots):
        window = None if config.window is None else change(config.window)
        return real(replace(config, window=window, mix="uniform"), index, slots)

    return visible


@mutant("visible", site="0.attention", witness=steps(3, window=3))
def is_one_short(real):
    """The window is one position too short: its oldest position is not seen."""
    return _seen_through(real, lambda window: window - 1)


@mutant("visible", site="0.attention", witness=steps(4, window=3), seen_in="ml-explore/mlx-lm#390")
def is_one_long(real):
    """The window is one position too long, where the cache still holds that entry."""
    return _seen_through(real, lambda window: window + 1)


@mutant(
    "visible",
    site="0.attention",
    witness=steps(4, window=3),
    seen_in="huggingface/transformers#31786",
    needs=WHOLE,
)
def does_not_reach_the_cached_path(real):
    """The cached path ignores the window: every layer sees the whole past."""
    return _seen_through(real, lambda window: None)


def _seen_whole(real, calls):
    """Returns `visible` without a window where `calls` holds for the positions of a call."""

    def visible(config, index, slots):
        config = replace(config, window=None, mix="uniform") if calls(index) else config
        return real(config, index, slots)

    return visible


@mutant(
    "visible",
    site="0.attention",
    witness=steps(3, 1, window=3),
    seen_in="goombalab/hnet#20",
    needs=WHOLE,
)
def is_that_of_the_prompt_alone(real):
    """Only the first call has a window; later calls see the whole past."""
    return _seen_whole(real, is_later)


@mutant(
    "visible",
    site="0.attention",
    witness=steps(3, 2, window=3),
    seen_in="ml-explore/mlx-lm#1914",
    needs=WHOLE,
)
def is_left_by_nothing_in_a_later_chunk(real):
    """A later chunk of several tokens has no window: it sees the whole past."""
    return _seen_whole(real, lambda index: index.shape[-1] > 1 and is_later(index))


@mutant("position_index", site="position", witness=steps(3, 1, window=3), needs=WHOLE)
def wraps_positions(real):
    """Positions wrap around at the size of the window and restart from 0."""
    return lambda config, cache, tokens: real(config, cache, tokens) % (config.window or 3)


@mutant(
    "attend",
    site="0.attention",
    witness=steps(4, mix="alternating", window=3),
    seen_in="ml-explore/mlx-examples#1202",
    needs={**WHOLE, "mix": ("alternating",)},
)
def is_that_of_the_next_layer(real):
    """Layers with and without a window are swapped."""

    def attend(config, weights, layer, query, keys, values, index):
        other = replace(config.at(layer + 1), mix="uniform")
        return real(other, weights, layer, query, keys, values, index)

    return attend


def _arranged(ring, before, entry):
    """Writes the new tokens of `ring`, which held `before`, into the entries that `entry` returns
    for their rows, columns and positions."""
    new = ring.arrivals
    places = new.places[:, before.shape[1] :]
    at = entry(new.row, new.column, places[new.row, new.column]) % before.shape[1]
    ring.arrivals = Arrivals(new.row, new.column, at, new.places)
    ring.held = before.clone()
    ring.held[new.row, at] = places[new.row, new.column]


@mutant(
    ".storage.ring:Ring.make_room",
    site="0.attention",
    witness=steps(4, 2, 1, 1, **RINGED),
    seen_in="lablup/mlxcel#678",
    needs=RING,
)
def writes_a_later_chunk_from_the_first_entry(real):
    """A later chunk of several tokens is written from the start of the ring, whatever its
    positions."""

    def make_room(self, start, count, places):
        before = self.held
        real(self, start, count, places)
        if start and count > 1 and self.held.shape[1]:
            _arranged(self, before, lambda row, column, place: column)

    return make_room


@mutant(
    ".storage.ring:Ring.make_room",
    site="0.attention",
    witness=steps(1, 6, 1, 1, **RINGED),
    needs=RING,
)
def wraps_a_chunk_one_entry_off(real):
    """A chunk that wraps around the ring continues at its second entry, not its first."""

    def make_room(self, start, count, places):
        before, size = self.held, self.held.shape[1]
        real(self, start, count, places)
        if count > 1 and size:
            first = _first_of(self.arrivals, before)
            _arranged(self, before, lambda row, column, place: place + (place // size > first[row]))

    def _first_of(new, before):
        places = new.places[:, before.shape[1] :]
        return places.amin(1) // before.shape[1]

    return make_room


def _one_back(ring, before):
    """Writes each token one entry too early, over the token before it."""
    _arranged(ring, before, lambda row, column, place: place - 1)


@mutant(
    ".storage.ring:Ring.crop",
    site="0.attention",
    witness=steps(3, Crop(1), 1, **RINGED),
    needs=RING,
    seen_in="Blaizzy/mlx-vlm#1715",
)
def turns_by_one_at_a_crop(real):
    """crop shifts the positions of the ring by one: each entry is taken for its neighbour."""

    def crop(self, length, places):
        real(self, length, places)
        if length and self.held.shape[1]:
            self.held = self.held.roll(1, 1)

    return crop


@mutant(
    ".operations:load",
    ".storage.ring:Ring.make_room",
    site="0.attention",
    witness=steps(3, Restore(), 1, 1, **RINGED),
    needs=RING,
)
def turns_by_one_at_a_restore(load, make_room):
    """After a restore, each new token overwrites the one before it in the ring."""
    loaded = False

    def watching_load(config, state):
        nonlocal loaded
        loaded = True
        return load(config, state)

    def one_back(self, start, count, places):
        before = self.held
        make_room(self, start, count, places)
        if loaded and self.held.shape[1]:
            _one_back(self, before)

    return watching_load, one_back


@mutant(
    ".storage.ring:Ring.entries",
    site="0.attention",
    witness=steps(3, 2, **RINGED),
    seen_in="huggingface/transformers#40039",
    needs=RING,
)
def of_a_later_chunk_is_that_of_its_last_token(real):
    """The first tokens of a later chunk see no further back than the window of its last token."""

    def entries(self, layer, places):
        found = real(self, layer, places)
        window = self.windows[layer]
        if found is None or window is None:
            return found
        newest = found.masked_fill(found == NOWHERE, -1).amax(1, keepdim=True)
        return found.masked_fill(found <= newest - window, NOWHERE)

    return entries


@mutant(".storage.ring:Ring.write", site="0.attention", witness=steps(7, 1, **RINGED), needs=RING)
def keeps_the_first_of_a_long_chunk(real):
    """A chunk longer than the ring leaves its first tokens in it, not its last."""

    def write(self, layer, start, key, value):
        size = self.keys[layer].shape[2]
        if self.windows[layer] is not None and key.shape[2] > size:
            ahead = key.shape[2] - size
            key, value = (
                torch.cat((x[:, :, :size], x[:, :, :ahead]), 2).roll(ahead, 2) for x in (key, value)
            )
        real(self, layer, start, key, value)

    return write
