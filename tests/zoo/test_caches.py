"""Every kind of cache and mix of layers, under random programs of all that can be done to one."""

import itertools

import pytest
import torch

from kvfuzz.subjects.injection import find_target, replaced
from kvfuzz.subjects.zoo import recurrence
from kvfuzz.subjects.zoo.config import CACHES, MIXES, POSITIONS, DecoderConfig
from kvfuzz.subjects.zoo.decoder import Decoder
from kvfuzz.subjects.zoo.places import NOWHERE
from kvfuzz.subjects.zoo.storage.ring import SPARE
from tests.zoo.programs import GIVEN, Disagreement, Program

STEPS = 15


def decoder_of(**settings):
    config = DecoderConfig(**{"max_length": 24, "head_dim": 4, **settings})
    return Decoder(config, seed=1, dtype="float64")


def in_one_call(decoder):
    """The reference of an int8 cache, which rounds each token alone, however it is fed."""
    return lambda tokens: decoder.cached(tokens, decoder.new_cache(len(tokens)))[0]


def program(decoder, seed, given=("mask", "positions")):
    reference = in_one_call(decoder) if decoder.config.cache == "int8" else None
    with torch.no_grad():
        return Program(decoder, seed, given=given, reference=reference).run(STEPS)


@pytest.mark.parametrize("mix", MIXES)
@pytest.mark.parametrize("cache", CACHES)
def test_a_row_has_the_logits_of_its_own_tokens(cache, mix):
    """Whatever is fed, padded, cropped, reordered, copied, restored and emptied in between; and
    earlier entries stay, and what is refused changes nothing."""
    refused = []
    for number, (positions, window, given) in enumerate(
        itertools.product(POSITIONS, (None, 3), GIVEN)
    ):
        decoder = decoder_of(
            cache=cache,
            mix=mix,
            positions=positions,
            window=window,
            layers=2 + number % 2,
            kv_heads=1 + number // 2 % 2,
        )
        refused += program(decoder, f"{cache} {mix} {number}", given).refused
    assert bool(refused) == (cache == "ring" or mix == "recurrent")


def shorter_by_one(real):
    return lambda self, length, places: real(self, length - 1, places)


def once(real):
    """Every row reads the storage of the first."""
    return lambda state, rows: real(state, torch.zeros_like(rows))


def loses(*names):
    """A save that leaves out what `names` say."""
    return lambda real: lambda *args: {**real(*args), **dict.fromkeys(names)}


def drops_the_newest(real):
    return lambda cache, layer, key, value: real(cache, layer, key[:, :, :-1], value[:, :, :-1])


def fades(real):
    """Each call makes what was there a little smaller."""

    def write(self, layer, start, key, value):
        self.keys[layer] = self.keys[layer] * (1 - 1e-13)
        real(self, layer, start, key, value)

    return write


def hides_the_oldest(real):
    return lambda *args: tuple(tensor[:, :, 1:] for tensor in real(*args))


def begins_and_refuses(real):
    def crop(cache, count):
        cache.length -= 1
        raise NotImplementedError

    return crop


def never_refuses(real):
    """What a ring should refuse, it takes for done."""

    def crop(self, length, places):
        try:
            real(self, length, places)
        except NotImplementedError:
            self.held = self.held.masked_fill(self.held >= length, NOWHERE)

    return crop


def scaled_together(real):
    """The scale of a chunk's largest entry for all of it."""

    def quantised(x):
        scale = real(x)[1]
        scale = scale.amax(2, keepdim=True).expand_as(scale)
        return (x / scale).round().to(torch.int8), scale

    return quantised


def shares_blocks(real):
    """A row that comes twice has one table for both."""

    def reorder(self, rows):
        self.tables = [list(self.tables[row]) for row in rows.tolist()]

    return reorder


def never_copies(real):
    """A row that others own too is written to."""
    return lambda self, row: row


def takes_padding_in(real):
    return lambda state, gate, value, kernel, text: real(state, gate, value, kernel, None)


def sees_what_is_free(real):
    """Slots that hold nothing stand at the beginning."""
    return lambda places, count: torch.nn.functional.pad(places, (0, count - places.shape[1]))


# Which check finds one first depends on the programs, but for three.
WRONG = "differs by|holds"
FAULTS = {
    "cached:store": (drops_the_newest, {}, WRONG),
    "cached:admit": (lambda real: lambda c, t, m, p: real(c, t, None, p), {}, WRONG),
    "cached:filled_up": (sees_what_is_free, {"cache": "static"}, "differs by"),
    "operations:crop": (begins_and_refuses, {}, "was refused, and it changed"),
    "operations:copy": (lambda real: lambda cache: cache, {"cache": "static"}, WRONG),
    "operations:save": (loses("places"), {}, WRONG),
    "operations:reset": (lambda real: lambda cache: cache, {}, WRONG),
    "storage.concatenated:Concatenated.write": (fades, {}, "changed earlier entries"),
    "storage.concatenated:Concatenated.view": (hides_the_oldest, {}, "layer 0 holds"),
    "storage.concatenated:Concatenated.crop": (shorter_by_one, {}, WRONG),
    "storage.static:Static.reorder": (once, {"cache": "static"}, WRONG),
    "storage.ring:Ring.crop": (never_refuses, {"cache": "ring", "window": 3}, WRONG),
    "storage.ring:Ring.reorder": (once, {"cache": "ring", "window": 3}, WRONG),
    "storage.paged:Paged.reorder": (shares_blocks, {"cache": "paged"}, WRONG),
    "storage.int8:quantised": (scaled_together, {"cache": "int8"}, WRONG),
    "storage.prefix:Prefix.owned": (never_copies, {"cache": "prefix"}, WRONG),
    "recurrence:step": (takes_padding_in, {"mix": "recurrent"}, WRONG),
    "recurrence:reorder": (once, {"mix": "recurrent"}, WRONG),
    "recurrence:crop": (lambda real: lambda history, count: history, {"mix": "recurrent"}, WRONG),
}


@pytest.mark.parametrize("target", FAULTS)
def test_a_fault_in_the_cached_path_is_found(target):
    """The test above can fail, at each of its checks."""
    make, settings, words = FAULTS[target]
    place = find_target(f"kvfuzz.subjects.zoo.{target}")
    real = getattr(*place)
    decoder = decoder_of(layers=2, **settings)

    def programs():
        for seed in range(40):
            program(decoder, seed)

    with replaced([place], [make(real)]), pytest.raises(Disagreement, match=words):
        programs()
    program(decoder, 0)


def fed(decoder, count, **given):
    tokens = torch.arange(2 * count).view(2, count)
    return decoder.cached(tokens, decoder.new_cache(2), **given)[1]


def test_a_full_ring_can_be_rolled_back_by_its_spare_entries():
    """And no further, for then the newest token would lack a part of its window."""
    decoder = decoder_of(cache="ring", window=3)
    cache = decoder.crop(fed(decoder, 10), SPARE)
    with pytest.raises(NotImplementedError, match="the ring has evicted what a row of 7 would see"):
        decoder.crop(cache, 1)
    assert decoder.crop(cache, 8).length == 0


def test_a_recurrent_layer_can_be_rolled_back_a_few_slots():
    """All of them, or as many as it has states of."""
    decoder = decoder_of(mix="recurrent")
    cache = fed(decoder, 10)
    with pytest.raises(NotImplementedError, match="cannot be rolled back by 4 slots"):
        decoder.crop(cache, recurrence.ROLLBACK + 1)
    assert decoder.crop(cache, recurrence.ROLLBACK).length == 7
    assert decoder.crop(cache, 7).length == 0


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"mask": torch.ones(2, 3, dtype=torch.bool)}, r"mask should be \[2, 4\], got \[2, 3\]"),
        ({"positions": torch.zeros(1, 4).long()}, r"positions should be \[2, 4\], got \[1, 4\]"),
    ],
)
def test_a_mask_or_positions_of_another_shape_are_refused(given, words):
    """With the shape that they should have."""
    with pytest.raises(ValueError, match=words):
        fed(decoder_of(), 4, **given)


def test_what_a_kind_says_that_it_does_not_use():
    """Free slots, free blocks and the end of the last one, empty entries of a ring; and nothing
    where only what is there is stored, or where another owns it."""

    def free(length=3, **settings):
        decoder = decoder_of(layers=1, **settings)
        return sum(t.numel() for t in decoder.unused(fed(decoder, length)))

    one_slot = 2 * 2 * 2 * 4  # keys and values, rows, heads, features
    assert free() == free(cache="int8") == 0
    assert free(cache="static") == free(cache="prefix") == (24 - 3) * one_slot
    assert free(cache="paged") == one_slot
    assert free(cache="ring", window=4) == (4 + SPARE - 3) * one_slot
    decoder = decoder_of(cache="prefix")
    cache = fed(decoder, 3)
    decoder.copy(cache)
    assert decoder.unused(cache) == []


def test_rows_and_forks_share_a_prefix_until_one_writes():
    """The same tensors, and then their own."""
    decoder = decoder_of(cache="prefix")
    cache = decoder.reorder(fed(decoder, 3), torch.tensor([0, 0]))
    fork = decoder.copy(cache)
    rows = [row.layers[0] for each in (cache, fork) for row in each.storage.rows]
    assert all(row is rows[0] for row in rows)
    decoder.cached(torch.tensor([[1], [2]]), fork)
    rows = [row.layers[0].data_ptr() for each in (cache, fork) for row in each.storage.rows]
    assert len(set(rows)) == 3


def test_a_ring_holds_its_window_and_a_little_more():
    """Layers without a window are kept whole."""
    decoder = decoder_of(cache="ring", mix="alternating", layers=3)
    assert decoder.windows == (3, None, 3)
    cache = fed(decoder, 10)
    assert [keys.shape[2] for keys in cache.keys] == [3 + SPARE, 10, 3 + SPARE]
    assert [pair[0].shape[2] for pair in decoder.view(cache)] == [3 + SPARE, 10, 3 + SPARE]


@pytest.mark.parametrize("cache", CACHES)
def test_a_layer_that_shares_or_recurs_stores_nothing(cache):
    """And shows nothing."""
    for mix, silent in (("shared_kv", 2), ("recurrent", 0)):
        decoder = decoder_of(cache=cache, mix=mix, layers=3, window=3)
        filled = fed(decoder, 5)
        assert [n for n, pair in enumerate(decoder.view(filled)) if pair is None] == [silent]
        assert len(filled.keys) < 3 or filled.keys[silent].numel() == 0
