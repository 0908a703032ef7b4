"""Events of two runs: which correspond, by how much they differ, and which is to blame."""

import math

import pytest
import torch

from kvfuzz.case.case import Case
from kvfuzz.case.schedule import Padded
from kvfuzz.localize.operations import reference_runs as references_module
from kvfuzz.localize.operations.align import axis_sizes
from kvfuzz.localize.operations.blame import (
    find_culprits,
    find_first_difference,
    find_last_difference,
)
from kvfuzz.localize.operations.compare_states import compare_events, find_worst, noise_between
from kvfuzz.localize.operations.difference import (
    abs_difference,
    allowed_for,
    largest_along,
    scale_of,
)
from kvfuzz.localize.operations.events import Event
from kvfuzz.localize.operations.first_difference import latent_cells
from kvfuzz.localize.operations.pair import group_events, pair_events, pair_reruns
from kvfuzz.localize.operations.traced_case import trace_case
from kvfuzz.subjects.loading import as_factory
from tests.subjects import decoders, faulty_decoders
from tests.subjects.decoders import Decoder, RecurrentDecoder, decoder

INF = math.inf


def event(index, output=None, operation="add", line=1, part=0):
    output = torch.zeros(1) if output is None else torch.as_tensor(output)
    return Event(index, 0, operation, "layers.0", (("model.py", line, "f"),), part, output)


def pairs(mine, theirs, *sizes):
    return pair_events(group_events(mine), group_events(theirs), *sizes)


def test_events_are_paired_by_line_and_order():
    """Not by their place in the run, and not with another operation or part."""
    mine = [event(0, line=2), event(1, line=1), event(2, line=1), event(3, operation="mul")]
    theirs = [event(7, line=1), event(8, line=1), event(9, line=2), event(10, part=1)]
    found = {index: other.index for index, other in pairs(mine, theirs, 1, 2, 3).items()}
    assert found == {0: 9, 1: 7, 2: 8}


def test_rounds_of_a_loop_are_paired_by_token():
    """Two tokens from position 3 on are the rounds 3 and 4 of five; each has two events."""
    theirs = [event(n) for n in range(10)]
    mine = [event(n) for n in range(4)]
    found = [other.index for other in pairs(mine, theirs, 2, 3, 5).values()]
    assert found == [6, 7, 8, 9]
    assert pairs(mine[:3], theirs, 2, 3, 5) == {}


def test_a_run_done_again_may_lack_what_has_nothing_to_do():
    """And no more than that: a run that does something else besides is another run."""
    run = [event(0, operation="to"), event(1), event(2, operation="mul"), event(3)]
    again = [event(0), event(1, operation="mul"), event(2)]
    assert {index: one.index for index, one in pair_reruns(run, again).items()} == {
        1: 0,
        2: 1,
        3: 2,
    }
    assert pair_reruns(again, run) == {}
    assert pair_reruns(run, [*again, event(3, operation="exp")]) == {}
    assert pair_reruns(run, [event(0, torch.zeros(2))]) == {}


@pytest.mark.parametrize(
    ("found", "right", "difference"),
    [
        ([1.0, 2.0], [1.0, 2.5], [0, 0.5]),
        ([-INF, INF, math.nan], [-INF, INF, math.nan], [0, 0, 0]),
        ([-INF, 0.0, math.nan], [0.0, INF, 0.0], [INF, INF, INF]),
        ([-3.4e38, -INF], [-INF, -3e38], [0, 0]),
        ([5.0, -1e9], [7.0, -1e9], [2, 0]),
    ],
)
def test_what_stands_for_infinity_is_infinity(found, right, difference):
    """As in masks, whichever number is used."""
    assert abs_difference(torch.tensor(found), torch.tensor(right)).tolist() == difference


def test_neighbours_that_stand_for_infinity_are_the_same():
    """The next float64 after 2e30 is as infinite; numbers that are only large are distinguished."""
    right = torch.tensor([2e30, 2.0**96], dtype=torch.float64)
    found = torch.tensor([math.nextafter(2e30, INF), 2.0**97], dtype=torch.float64)
    assert abs_difference(found, right).tolist() == [0, 2.0**96]
    assert largest_along(found, right, 0) == (0, 2.0**96)
    assert largest_along(found[:1], right[:1], None) == (0,)


def test_integers_differ_or_do_not():
    """Nothing is allowed for them."""
    found, right = torch.tensor([1, 2]), torch.tensor([1, 4])
    assert (abs_difference(found, right) > 0).tolist() == [False, True]
    masks = abs_difference(torch.tensor([True, False]), torch.tensor([False, False]))
    assert (masks > 0).tolist() == [True, False]
    assert allowed_for(right, 1.0) == 0


def test_what_is_allowed_is_of_the_scale_of_what_is_ordinary():
    """A number that means "never", as in a mask, does not set it."""
    values = torch.tensor([1.0, -2.0, 3.0], dtype=torch.float64)
    never = torch.cat((values, torch.tensor([-1e9, -INF, 3e38], dtype=torch.float64)))
    assert scale_of(values) == 3
    assert scale_of(never) < 1e6
    assert scale_of(torch.zeros(0)) == 0
    assert allowed_for(2 * values, 0.0) == 2 * allowed_for(values, 0.0)
    assert allowed_for(values, 1e-9) > allowed_for(values, 0.0)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_what_is_allowed_is_a_small_part_of_the_scale(dtype):
    """Else nothing would ever differ in bfloat16."""
    assert 0 < allowed_for(torch.ones(3, dtype=dtype), 0.0) < 0.1


def test_the_noise_of_an_event_is_relative_to_its_scale():
    """And none where the events are not alike, or hold no numbers of the kind."""
    right = event(0, [1.0, 4.0])
    assert noise_between(right, event(0, [1.0, 4.4])) == pytest.approx(0.1)
    assert noise_between(right, event(0, [1.0, 4.4, 9.0])) == 0
    assert noise_between(event(1, [3]), event(1, [4])) == 0


def test_the_worst_place_is_the_first_position_that_differs():
    """There the largest row and channel."""
    right = torch.zeros(2, 4, 3, dtype=torch.float64)
    right[:] = torch.arange(1.0, 5)[:, None]
    found = right[:, 2:].clone()
    found[0, 1, 0] += 9
    found[1, 0, 2] += 2
    found[0, 0, 1] += 1
    sizes = axis_sizes([[0, 1, 2, 3]] * 2, 2, 4)
    one = compare_events(event(0, found), event(1, right), sizes, 0.0)
    place = find_worst(one)
    assert (place.position, place.row, place.channel, place.difference) == (2, 1, 2, 2)
    assert one.differs
    assert not compare_events(event(0, right[:, 2:]), event(1, right), sizes, 0.0).differs


def test_slots_that_padding_moves_are_compared_where_they_are():
    """Of a cache with room for more than is used, as the columns of a mask are."""
    sizes = axis_sizes([[None, 0, 1], [0, 1, 2]], 1, 5)
    right = torch.zeros(2, 5, 9, dtype=torch.float64)
    right[:, :, :5] = torch.arange(1.0, 6).diag()
    found = torch.zeros(2, 1, 9, dtype=torch.float64)
    found[0, 0, :3], found[1, 0, :3] = torch.tensor([0, 0, 2.0]), torch.tensor([0, 0, 3.0])
    assert not compare_events(event(0, found), event(1, right), sizes, 0.0).differs
    found[0, 0, 1] = 1
    assert compare_events(event(0, found), event(1, right), sizes, 0.0).differs


PLAIN = Case(((1, 2, 3, 4, 5), (9, 8, 7, 6, 5)), (2, 1, 2), dtype="float64")


def inner(subject, case=PLAIN):
    return trace_case(as_factory(subject).subject(case), case)


@pytest.mark.parametrize("subject", [Decoder, RecurrentDecoder, decoder(mixer=decoders.Fused)])
def test_the_noise_of_the_states_of_a_decoder_is_measured(subject):
    """By a run with other weights, of the same operations: every projection is moved, by a few
    roundoffs of float64."""
    reference = inner(subject).references.own(2).run
    projected = [e for e in reference.recording.events if e.operation == "linear"]
    noises = [reference.noise_of(event) for event in projected]
    assert len(noises) > 10
    assert all(2**-56 < noise < 2**-40 for noise in noises)


def blamed(found):
    last = find_last_difference(found, found.diverging_step)
    first = find_first_difference(found, last)
    return first, find_culprits(found, first.event, last)[0]


def test_a_right_operation_is_not_blamed():
    """The search stops at what is right: only the operation of the fault is left."""
    found = inner(decoder(mixer=faulty_decoders.SharpensLater))
    first, event = blamed(found)
    assert first.event.module == "layers.1.mixer"
    line = faulty_decoders.line_of(faulty_decoders.SharpensLater)
    assert (event.operation, event.place[1]) == ("mul", line)
    earlier = [found.comparisons.get(index) for index in event.inputs]
    assert not any(one.differs for one in earlier if one is not None)


def test_an_earlier_write_that_is_right_is_not_blamed():
    """A prefill fills a room as a longer run does; the later call writes to the wrong slot."""
    _, event = blamed(inner(faulty_decoders.WritesEarlyDecoder))
    assert (event.operation, event.step) == ("__setitem__", 1)


class DropsAtPrefill(decoders.Allocated):
    """The first call writes one too few, and attends to what it was given."""

    def update(self, layer, key, value):
        start = self.filled[layer]
        states = super().update(layer, key, value)
        return states if start else (key, value)

    def write(self, room, new, start):
        new = new if start else new[:, :, :-1]
        super().write(room, new, start)


class DropsAtPrefillDecoder(decoders.AllocatedDecoder):
    cache = DropsAtPrefill


def test_an_earlier_write_that_is_wrong_is_blamed():
    """Though the logits of that call agree."""
    found = inner(DropsAtPrefillDecoder)
    assert found.diverging_step == 1
    _, event = blamed(found)
    assert event.step == 0


@pytest.mark.parametrize(
    "subject",
    [
        Decoder,
        RecurrentDecoder,
        decoders.AllocatedDecoder,
        decoders.StackedDecoder,
        decoders.InOneTensorDecoder,
        decoder(mixer=decoders.Fused),
    ],
)
def test_every_state_of_a_clean_decoder_agrees(subject):
    """And many are compared in every step."""
    found = inner(subject)
    assert found.diverging_step is None
    assert latent_cells(found) == []
    assert not any(one.differs for one in found.comparisons.values())
    for step in range(3):
        there = [e for e in found.recording.of(step) if e.index in found.comparisons]
        assert len(there) > 40


class ByLength(decoders.Net):
    """Each position is counted from the end, so that a longer run has other states."""

    def positions(self, start, time):
        return torch.arange(start, start + time) + time


class Recomputed(Decoder):
    """Keeps the tokens, and runs all of them at each call."""

    net = ByLength

    def new_cache(self, batch):
        return torch.zeros(batch, 0, dtype=torch.int64)

    def cached(self, tokens, cache):
        whole = torch.cat([cache, tokens], 1)
        return self.model(whole)[:, cache.shape[1] :], whole


@pytest.fixture
def references(monkeypatch):
    """How many reference runs there were, in a list of one for each."""
    runs, real = [], references_module.run_reference

    def counted(*args):
        runs.append(1)
        return real(*args)

    monkeypatch.setattr(references_module, "run_reference", counted)
    return runs


def test_one_reference_serves_all_steps(references):
    """Where a longer run begins as a shorter one does."""
    found = inner(Decoder)
    assert latent_cells(found) == []
    assert len(references) == 1


def test_a_step_is_held_to_its_own_prefix_where_the_length_matters(references):
    """Each agrees with a run over its own, and with no longer one."""
    found = inner(Recomputed)
    assert found.diverging_step is None
    inside_modules = [one for one in found.comparisons.values() if one.event.module]
    assert not any(one.differs for one in inside_modules)
    assert len(references) == 3


def test_padded_rows_are_compared_one_by_one():
    """Each at the places of its own text."""
    case = Case(PLAIN.tokens, (Padded(3, "left", (0, 2)), 1, 1), dtype="float64", given=("mask",))
    found = inner(decoders.PaddedDecoder, case)
    assert not found.sizes[1].plain
    pieces = [one.pieces for one in found.comparisons.values() if one.event.step == 1]
    assert {tuple(piece.row for piece in some) for some in pieces} == {(0, 1)}
    assert {some[1].positions for some in pieces if some[1].new} == {(1,)}
