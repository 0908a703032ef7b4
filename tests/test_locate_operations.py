"""Locating in rings, in pools, and after operations on a cache: what a slot holds counts, and an
operation is blamed only where the same calls without it are right."""

import pytest
import torch

import kvfuzz
from kvfuzz.case.schedule import Crop, Fork, New, Padded, Reorder, Reset, Restore, Switch
from kvfuzz.localize.guilty_operation import find_guilty_operation, without_operations
from kvfuzz.localize.lookalikes import WrongState, find_lookalike
from kvfuzz.localize.operations.align import align, align_by_content, axis_sizes
from kvfuzz.localize.operations.source_lines import line_of_function
from tests.locate_cases import case
from tests.subjects import operated
from tests.subjects.faulty_decoders import line_of
from tests.subjects.operated import VOCAB


def program(*schedule, rows=2, given=()):
    return case(*schedule, rows=rows, given=given, vocabulary=VOCAB)


# Rings.


@pytest.mark.parametrize("schedule", [(2, 3), (2, operated.WINDOW)])
def test_a_chunk_that_overwrites_what_it_needs_is_named_by_the_write(schedule):
    """And which key is gone; neither the slots, which are no positions, nor the positions that the
    call makes are blamed."""
    found = kvfuzz.locate(operated.WritesFirstDecoder, program(*schedule))
    assert found.first.source.line == line_of(operated.WritesFirst)
    assert (str(found.first.site), found.cause) == ("0.cache", "evicted keys")
    assert "the key of position 0 is gone, and position 2 attends to it" in found.advice
    assert "keys and values of earlier positions agree" in found.evidence


def test_nothing_is_named_in_a_ring_that_is_right():
    """Also where its slots are in another order than their positions."""
    found = kvfuzz.locate(operated.RingDecoder, program(2, 3, 1, 1, 2))
    assert (found.first, found.latent) == (None, ())


def test_slots_are_matched_by_what_they_hold():
    """Each once, although two hold the same; a slot that holds something else matches none."""
    right = torch.tensor([[[7.0], [3.0], [3.0], [1.0], [2.0]]])
    sizes = axis_sizes([list(range(5))], 1, 5)
    (piece,) = align(torch.tensor([[[2.0], [3.0], [3.0], [1.0]]]), right, sizes)
    assert piece.last == 1
    assert torch.equal(align_by_content(piece, 0.0).found, right[:, 1:])
    (piece,) = align(torch.tensor([[[2.0], [3.0], [9.0], [1.0]]]), right, sizes)
    assert align_by_content(piece, 0.0) is None
    (piece,) = align(torch.tensor([2, 3, 4, 1]), torch.arange(5), sizes)
    assert align_by_content(piece, 0.0).found.tolist() == [1, 2, 3, 4]


# Operations.


def test_a_restore_into_other_cells_is_named_in_the_method():
    """By what it wrote last into the pool, and not by what the pool holds before."""
    assert kvfuzz.check(operated.PoolDecoder(), program(2, Restore(), 1)).status == "agreed"
    found = kvfuzz.locate(operated.LoadsIntoTheOldCells, program(2, Restore(), 1))
    assert found.first.source.line == line_of(operated.LoadsIntoTheOldCells)
    assert (found.first.step, str(found.first.site)) == (1, "0.cache")
    assert found.cause == "stale state"
    assert "the same calls without the restore are right" in found.advice


def test_a_crop_that_only_counts_is_named_by_its_method():
    """It computes with no tensors, so no operation of it was recorded."""
    assert kvfuzz.check(operated.CountedDecoder(), program(4, Crop(2), 2)).status == "agreed"
    found = kvfuzz.locate(operated.CropsOneTooFew, program(4, Crop(2), 2))
    assert found.first.source.function == "CropsOneTooFew.crop"
    assert (found.first.step, found.cause) == (1, "stale state")


def test_an_operation_before_a_fault_of_another_kind_is_not_blamed():
    """The same calls without the crop are wrong too."""
    found = kvfuzz.locate(operated.NarrowsLaterDecoder, program(4, Crop(2), 2))
    assert found.first.source.function == "NarrowsLater.forward"
    assert (found.first.step, found.cause) == (2, "projection")


@pytest.mark.parametrize(
    ("schedule", "rows", "guilty"),
    [
        ((4, Crop(2), 2), 2, "crop"),
        ((3, 1, Crop(2), Crop(1), 2), 2, "crop"),
        ((4, 2), 2, None),
        ((4, New(2), 2, Switch(0), Crop(2), 2), 2, None),
        ((Padded(4, "left", (1, 2)), Crop(1), 1), 2, None),
    ],
)
def test_an_operation_is_guilty_if_the_calls_without_it_are_right(schedule, rows, guilty):
    """Not where there is none, or where rows are padded."""
    given = ("mask",) if isinstance(schedule[0], Padded) else ()
    asked = program(*schedule, rows=rows, given=given)
    found = find_guilty_operation(operated.CropsOneTooFew(), asked, len(schedule) - 1)
    assert (found and found.kind) == guilty


def test_the_calls_without_an_operation_are_those_that_fed_what_is_left():
    """For every operation: the same tokens in the same calls."""

    def calls(*schedule):
        asked = program(*schedule, rows=3)
        without = without_operations(asked, list(asked.steps()))
        assert all(step.feeds for step in without.steps())
        return without.schedule

    assert calls(3, 2, Crop(3), 1) == (2, 1)
    assert calls(3, Reorder((2, 0, 1)), 1) == (3, 1)
    assert calls(3, 1, Restore(), 2) == (3, 1, 2)
    assert calls(3, Reset(), 2) == (2,)
    assert calls(3, 1, Fork(), 2) == (3, 1, 2)


# Helpers.


def test_swapped_arguments_are_named_at_the_call():
    """The helper is right in other calls: its line comes second."""
    assert kvfuzz.check(operated.CallsHelperDecoder(), program(3, 1)).status == "agreed"
    first = kvfuzz.locate(operated.SwapsArgumentsDecoder, program(3, 1)).first
    assert first.source.line == line_of(operated.SwapsArguments)
    assert first.helper.function == "mix"
    assert first.to_json()["helper"]["text"].startswith("weights = (query @ key.mT)")


# What is said.


@pytest.mark.parametrize("factor", [0.99, 1.00001, 2.0, -1.5])
def test_a_factor_is_said_in_the_digits_that_tell_it(factor):
    """1.00001 is not 1."""
    right = torch.linspace(1, 2, 12, dtype=torch.float64).reshape(1, 3, 4) ** 2
    cause, seen = find_lookalike(WrongState(right * factor, right, (0, 1, 2)))
    assert (cause, seen) == ("scale", f"it is {factor:g} times what it should be")


class CountsFed:
    """Rotates a new key by how many tokens it has seen, and the uncached path by half of that."""

    vocab_size, max_length = 23, None

    def __init__(self):
        self.embedding = torch.randn(23, 8, generator=torch.Generator().manual_seed(0))

    def turned(self, states, positions):
        angles = positions.double()[:, None] / 20 ** torch.arange(8)
        return states * angles.cos().to(states)

    def uncached(self, tokens):
        places = torch.arange(tokens.shape[1]).div(2, rounding_mode="floor")
        return self.turned(self.embedding[tokens], places).cumsum(1) @ self.embedding.T

    def new_cache(self, batch):
        return torch.zeros(batch, 0, 8)

    def cached(self, tokens, cache):
        seen, new = cache.shape[1], self.embedding[tokens]
        every = torch.arange(seen, seen + tokens.shape[1])
        if tokens.shape[1] == 1:
            place = seen if seen >= 4 else seen // 2
            new = self.turned(new, torch.tensor([place]))  # the fault
        else:
            new = self.turned(new, every.div(2, rounding_mode="floor"))
        kept = torch.cat([cache, new], 1)
        return kept.cumsum(1)[:, seen:] @ self.embedding.T, kept


def test_positions_that_a_call_makes_are_named_at_the_call():
    """The helper that works on them is right in earlier steps, also for this call."""
    found = kvfuzz.locate(CountsFed(), kvfuzz.Case(((1, 2, 3, 4, 5),), (1,) * 5, 0, "float32"))
    assert "# the fault" in found.first.source.text


def test_no_line_of_an_adapter_is_named():
    """A method in kvfuzz's own folder has no line, one of the user's or of the built-in decoder's
    has."""
    from kvfuzz.subjects.transformers.subject import TransformersSubject
    from kvfuzz.subjects.zoo.decoder import Decoder

    assert line_of_function(TransformersSubject._reorder) is None
    assert line_of_function(Decoder.cached) is not None
    assert line_of_function(operated.RingDecoder.cached) is not None


class GrowsBehind:
    """Grows its cache by a block of empty room behind an old block that is not full."""

    vocab_size, max_length = 23, None

    def __init__(self):
        self.embedding = torch.randn(23, 8, generator=torch.Generator().manual_seed(0))

    def uncached(self, tokens):
        return self.embedding[tokens].cumsum(1) @ self.embedding.T

    def new_cache(self, batch):
        return None, 0

    def cached(self, tokens, cache):
        new, (old, seen) = self.embedding[tokens], cache
        fed, end = tokens.shape[1], seen + tokens.shape[1]
        room = new.new_zeros(1, 4 * ((fed + 3) // 4), 8)
        at = 0 if old is None else old.shape[1]  # behind the block
        old = room if old is None else torch.cat([old, room], 1)
        old[:, at : at + fed] = new
        return old[:, :end].cumsum(1)[:, seen:] @ self.embedding.T, (old, end)


def test_empty_room_of_another_size_is_not_named():
    """A reference may need less of it."""
    found = kvfuzz.locate(GrowsBehind(), kvfuzz.Case(((1, 2, 3, 4, 5),), (3, 2), 0, "float32"))
    assert "new_zeros" not in found.first.source.text
