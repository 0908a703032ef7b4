"""Programs of cache operations: plain data that cannot be wrong, and what they come to."""

import json
from dataclasses import replace

import pytest
import torch
from hypothesis import given

import kvfuzz
from kvfuzz.case.case import Case
from kvfuzz.case.features import family, features_of
from kvfuzz.case.layout import layout
from kvfuzz.case.schedule import (
    Crop,
    Fork,
    New,
    Padded,
    Reorder,
    Reset,
    Restore,
    Switch,
    schedule_text,
)
from kvfuzz.errors import InvalidCase, InvalidSubject
from kvfuzz.localize.operations.record import WatchedSubject, record
from kvfuzz.search.strategies import cases, space_of
from kvfuzz.subjects.loading import as_factory
from kvfuzz.subjects.protocol import offers_of
from kvfuzz.subjects.run import POISON, run_cached
from tests.shrinking import smallest
from tests.subjects import models
from tests.subjects.recomputing import Recomputes

SPACE = space_of(as_factory(Recomputes))
# Everything that there is, once.
EVERYTHING = Case(
    tokens=tuple(tuple(range(10 * row, 10 * row + 9)) for row in range(2)),
    schedule=(
        Padded(3, "left", (0, 2)), Crop(1), 1, Fork(), 1, Reorder((1, 0)), 1, Restore(), 1,
        Switch(0), 1, Reset(), New(1), 1,
    ),
    given=("mask", "positions"),
)  # fmt: skip


def test_every_operation_survives_json():
    """What is written to a file is read back equal, and looks like what it is."""
    data = json.loads(json.dumps(EVERYTHING.to_json()))
    assert Case.from_json(data) == EVERYTHING
    assert data["schedule"][:4] == [["padded", 3, "left", [0, 2]], ["crop", 1], 1, ["fork"]]
    assert data["given"] == ["mask", "positions"]


def test_a_plain_case_is_written_as_before():
    """Files of plain cases keep their names, which are made from this."""
    assert "given" not in Case(((1, 2),), (1, 1)).to_json()


@given(cases(SPACE))
def test_drawn_programs_survive_json(case):
    """Whatever is drawn."""
    assert Case.from_json(json.loads(json.dumps(case.to_json()))) == case


def test_a_schedule_reads_as_a_story():
    """Operations are told by their words."""
    assert schedule_text(EVERYTHING.schedule) == (
        "[3 padded left [0, 2], crop 1, 1, fork, 1, reorder [1, 0], 1, restore, 1, switch 0, 1, "
        "reset, new of 1, 1]"
    )
    assert [step.kind for step in EVERYTHING.steps()] == [
        "prefill", "crop", "decode", "fork", "decode", "reorder", "decode", "restore", "decode",
        "switch", "decode", "reset", "new", "prefill",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("schedule", "given_", "message"),
    [
        ((Crop(1), 2), (), "'crop 1' in the schedule should have a cache that holds something"),
        ((1, Crop(0), 1), (), "'crop 0' .* should have a count of 1 or more"),
        ((1, Reorder((2,)), 1), (), r"should have rows from 0 to 1"),
        ((1, Reorder((0, 1, 0)), 1), (), "should have 1 to 2 rows"),
        ((1, Switch(1), 1), (), "'switch 1' .* should have one of the 1 caches"),
        ((1, New(3), 1), (), "'new of 3' .* should have 1 to 2 rows"),
        ((Padded(2, "left", (0,)),), ("mask",), "a number of pads for 2 rows"),
        ((Padded(2, "left", (0, 2)),), ("mask",), "0 to 1 pads in each row"),
        ((Padded(2, "top", (0, 1)),), ("mask",), "left or right as its side"),
        ((Padded(2, "left", (0, 1)),), (), "padding needs a mask in every call"),
        ((2,), ("tokens",), "given should name mask and positions, got"),
        ((3,), (), r"schedule \[3\] should be positive chunk sizes that sum to the 2 tokens"),
    ],
)
def test_a_program_that_makes_no_sense_is_refused(schedule, given_, message):
    """The entry is named, with what it should have."""
    with pytest.raises(InvalidCase, match=message):
        Case(((1, 2), (3, 4)), schedule, given=given_)


@pytest.mark.parametrize(
    ("schedule", "message"),
    [
        ([1, ["crop"], 1], "'crop' in 'schedule' takes count, got"),
        ([1, ["fork", 2], 1], "'fork' in 'schedule' takes nothing, got"),
        (
            [1, ["jump", 2], 1],
            "should hold integers, or lists that begin with padded, ragged, tree, crop",
        ),
        ([1, ["crop", "x"], 1], "count of 'crop' should be an integer, got 'x'"),
        ([1, ["reorder", 1], 1], "rows of 'reorder' should be a list of integers, got 1"),
        ([["padded", 2, 3, [0]]], "side of 'padded' should be a word, got 3"),
        ([True, 1], "got True"),
        ("11", "'schedule' should be a list, got '11'"),
    ],
)
def test_a_schedule_in_a_file_that_is_wrong_is_told_in_one_line(schedule, message):
    """Hand-edited counterexamples are common."""
    data = {"tokens": [[1, 2]], "schedule": schedule, "seed": 0, "dtype": "float32"}
    with pytest.raises(InvalidCase, match=message):
        Case.from_json(data)


@given(cases(SPACE))
def test_every_cell_belongs_to_what_its_row_was_fed(case):
    """A plain list of lists, changed entry by entry, says the same as the layout."""
    found = layout(case)
    caches, current, column = [], 0, 0
    if not isinstance(case.schedule[0], New):
        caches.append([[] for _ in case.tokens])
    for entry in case.schedule:
        match entry:
            case int() | Padded():
                size = entry if isinstance(entry, int) else entry.size
                for row, slots in enumerate(caches[current]):
                    pads = entry.pads[row] if isinstance(entry, Padded) else 0
                    for offset in range(size):
                        left = isinstance(entry, Padded) and entry.side == "left"
                        is_text = offset >= pads if left else offset < size - pads
                        slots.append(case.tokens[row][column + offset] if is_text else None)
                        assert bool(found.fed[row, column + offset]) is is_text
                        if is_text:
                            own = [token for token in slots if token is not None]
                            number = int(found.sequence[row, column + offset])
                            place = int(found.position[row, column + offset])
                            assert list(found.sequences[number][: place + 1]) == own
                column += size
            case Crop(count):
                caches[current] = [row[: max(0, len(row) - count)] for row in caches[current]]
            case Reorder(rows):
                caches[current] = [list(caches[current][row]) for row in rows]
            case Fork():
                caches.append([list(row) for row in caches[current]])
                current = len(caches) - 1
            case New(rows):
                caches.append([[] for _ in range(rows)])
                current = len(caches) - 1
            case Reset():
                caches[current] = [[] for _ in caches[current]]
            case Switch(cache):
                current = cache


def test_a_decoder_that_can_do_all_of_it_agrees():
    """No operation makes a false alarm, in one program and in a hunt."""
    assert kvfuzz.check(Recomputes(), EVERYTHING).status == "agreed"
    hunt = kvfuzz.fuzz(Recomputes, seed=1, examples=50)
    assert hunt.verdict == "agreed"
    assert hunt.not_exercised() == {
        "logits_to_keep": "not offered",
        "ragged": "not offered",
        "tree": "not offered",
        "join": "not offered",
        "rollback": "not offered",
        "frame": "not offered",
        "generation": "not offered",
        "latent": "not asked for",
    }


def test_what_was_not_exercised_is_listed():
    """Nobody takes silence for proof."""

    class Plain(Recomputes):
        crop = reorder = copy = save = load = reset = None
        positions_from_mask = False

        def cached(self, tokens, cache):
            return super().cached(tokens, cache)

    lacking = kvfuzz.fuzz(Plain, seed=1, examples=60).not_exercised()
    assert lacking["crop"] == lacking["left padding"] == lacking["frame"] == "not offered"
    assert {"extend", "decode", "several rows", "causality"} & set(lacking) == set()
    few = kvfuzz.fuzz(Recomputes, seed=1, examples=3, laws=["causality"]).not_exercised()
    assert few["isolation"] == "not asked for"
    assert "not drawn" in few.values()


def test_what_is_offered_and_not_drawn_is_told_from_what_is_not_offered():
    """Each feature and law by the offer that it needs."""
    hunt = replace(kvfuzz.fuzz(Recomputes, seed=1, examples=1), exercised={})
    needed = {"crop": "crop", "fork": "copy", "restore": "save", "reset": "reset", "mask": "mask"}
    needed |= dict.fromkeys(("reorder", "select", "repeat"), "reorder")
    needed |= dict.fromkeys(("left padding", "right padding"), "mask")
    needed |= {"positions": "positions", "frame": "view", "generation": "generate"}
    for word, offer in needed.items():
        assert replace(hunt, offers=frozenset()).not_exercised()[word] == "not offered"
        assert replace(hunt, offers=frozenset({offer})).not_exercised()[word] == "not drawn"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"crop": lambda self, cache: cache}, r"crop should be a method crop\(cache, count\)"),
        ({"reset": lambda self: None}, r"reset should be a method reset\(cache\)"),
        ({"load": None}, "has save but no load: both or neither"),
        ({"save": None}, "has load but no save: both or neither"),
    ],
)
def test_an_offer_of_another_signature_is_refused_by_its_name(change, message):
    """When the subject is loaded, not at the first case that needs it."""
    subject = type("Odd", (Recomputes,), change)
    with pytest.raises(InvalidSubject, match=message):
        kvfuzz.fuzz(subject, examples=5)


def test_an_attribute_that_is_no_method_offers_nothing():
    """A subject may call a tensor `copy`."""
    odd = type("Odd", (Recomputes,), {"copy": torch.ones(2)})
    assert "copy" not in offers_of(odd())


def test_a_method_that_forgets_to_return_the_cache_is_told_so():
    """One that changes its argument and no more."""
    forgetful = type("Forgetful", (Recomputes,), {"crop": lambda self, cache, count: None})
    with pytest.raises(InvalidSubject, match=r"crop\(\) should return the cache, got None"):
        kvfuzz.check(forgetful(), Case(((1, 2),), (1, Crop(1), 1)))


def test_a_case_that_needs_more_than_is_offered_is_refused():
    """Replaying on another subject, for one."""
    small = type("Small", (Recomputes,), {"crop": None})
    with pytest.raises(InvalidCase, match=r"has no method crop\(cache, count\), which this case"):
        kvfuzz.check(small(), Case(((1, 2),), (1, Crop(1), 1)))


def test_what_a_subject_refuses_is_discarded_and_counted():
    """A window cannot give back what it has passed: that is no fault."""

    class Refuses(Recomputes):
        def crop(self, cache, count):
            raise NotImplementedError("the window has rolled")

    verdict = kvfuzz.check(Refuses(), Case(((1, 2),), (1, Crop(1), 1)))
    assert (verdict.status, verdict.reason) == (
        "discarded",
        "crop refused: the window has rolled",
    )
    hunt = kvfuzz.fuzz(Refuses, seed=1, examples=30)
    assert hunt.verdict == "agreed"
    assert hunt.discarded > 0
    assert hunt.not_exercised()["crop"] == "not drawn"


def test_unused_slots_are_poisoned_before_each_call():
    """So that a read of them shows."""
    seen = []

    class Preallocated(Recomputes):
        def unused(self, cache):
            slots = torch.zeros(3), torch.zeros(2, dtype=torch.int8), torch.ones(1).bool()
            seen.append(slots)
            return slots

    run_cached(Preallocated(), Case(((1, 2),), (1, 1)))
    assert len(seen) == 2
    assert all(float(a.min()) == POISON and int(b.min()) == 127 and bool(c) for a, b, c in seen)


def test_poison_does_not_overflow_where_it_is_multiplied():
    """In float16 an infinite score would be NaN behind a mask, which no slot of zeros is."""
    slots = torch.zeros(3, dtype=torch.float16)

    class Preallocated(Recomputes):
        def unused(self, cache):
            return (slots,)

    run_cached(Preallocated(), Case(((1, 2),), (1, 1)))
    assert 100 < float(slots.min()) < 300


def test_a_state_is_really_written_and_read():
    """A cache that hands itself over is not restored."""

    class Shares(Recomputes):
        def save(self, cache):
            return cache

        def load(self, state):
            assert state is not self.held
            return state

        def cached(self, tokens, cache, *, mask=None, positions=None):
            logits, self.held = super().cached(tokens, cache, mask=mask, positions=positions)
            return logits, self.held

    assert kvfuzz.check(Shares(), Case(((1, 2),), (1, Restore(), 1))).status == "agreed"


def test_elements_and_families():
    """What a report tells kills by."""
    assert features_of(EVERYTHING) == {
        "decode", "crop", "fork", "reorder", "restore", "reset", "new", "switch",
        "left padding", "mask", "positions", "several rows",
    }  # fmt: skip
    assert family(EVERYTHING) == "several operations"
    rows = ((1, 2), (3, 4))
    assert family(Case(rows, (1, Crop(1), 1))) == "crop"
    assert family(Case(rows, (Padded(2, "right", (0, 1)),), given=("mask",))) == "padding"
    assert family(Case(rows, (1, 1), given=("mask",))) == "given arguments"
    assert features_of(Case(rows, (New(1), 1, Reorder((0, 0)), 1))) >= {"repeat", "several rows"}
    assert "new" not in features_of(Case(rows, (New(1), 2)))


def test_a_program_is_replayed(tmp_path):
    """From its file, on the fixed subject too."""

    class CropsOneLess(Recomputes):
        def crop(self, cache, count):
            return super().crop(cache, count - 1)

    hunt = kvfuzz.fuzz(CropsOneLess, seed=0, folder=tmp_path)
    assert hunt.failure.case.schedule == (1, Crop(1), 1)
    again = kvfuzz.replay(hunt.path, subject="tests.subjects.recomputing:Recomputes")
    assert again.verdict.status == "agreed"


def test_positions_follow_a_row_through_padding_and_reordering():
    """What calls are given, against a count by hand."""
    given_positions, given_masks = [], []

    class Watched(Recomputes):
        def cached(self, tokens, cache, *, mask=None, positions=None):
            given_positions.append(positions.tolist())
            given_masks.append(mask.tolist())
            return super().cached(tokens, cache, mask=mask, positions=positions)

    case = Case(
        ((1, 2, 3, 4), (5, 6, 7, 8)),
        (Padded(3, "left", (0, 2)), Reorder((1, 0)), 1),
        given=("mask", "positions"),
    )
    run_cached(Watched(), case)
    assert given_positions == [[[0, 1, 2], [0, 0, 0]], [[1], [3]]]
    assert given_masks[1] == [[False, False, True, True], [True, True, True, True]]


def test_a_simple_case_gives_a_subject_nothing_it_did_not_ask_for():
    """A subject of three methods sees tokens and its cache."""
    case = replace(EVERYTHING, schedule=(9,), given=())

    class Bare(Recomputes):
        def cached(self, tokens, cache):
            return super().cached(tokens, cache)

    assert kvfuzz.check(Bare(), case).status == "agreed"


def test_a_find_keeps_the_positions_that_padding_needs():
    """A right subject that asks for them would answer wrongly without: it must not be accused."""
    case = Case(((1, 2, 3), (4, 5, 6)), (Padded(2, "left", (1, 0)), 1), given=("mask", "positions"))

    def fails(tried):
        return any(isinstance(entry, Padded) for entry in tried.schedule)

    assert smallest(case, fails, {"mask", "positions"}).given == ("mask", "positions")
    assert smallest(case, fails, {"mask", "positions", "positions_from_mask"}).given == ("mask",)


def test_the_filling_of_unused_slots_is_no_operation_of_the_subject():
    """It is not recorded, so that nobody's `unused` is blamed for it."""

    class Preallocated(models.Summing):
        def unused(self, cache):
            return [torch.full((3,), 7.0)[1:]]

    with record(WatchedSubject(Preallocated())) as recording:
        run_cached(Preallocated(), Case(((1, 2),), (1, 1)))
    operations = {event.operation for event in recording.events}
    assert operations
    assert not operations & {"fill_", "full"}


def test_an_empty_cache_may_be_none():
    """Then a crop to nothing gives that; of a cache that is an object it is a mistake."""

    class Nothing(models.Summing):
        def new_cache(self, batch):
            return None

        def cached(self, tokens, cache):
            return super().cached(
                tokens, super().new_cache(len(tokens)) if cache is None else cache
            )

        def crop(self, cache, count):
            return None

    case = Case(((1, 2, 3),), (2, Crop(2), 1))
    assert kvfuzz.check(Nothing(), case).status == "agreed"
    with pytest.raises(InvalidSubject, match=r"crop\(\) should return the cache, got None"):
        kvfuzz.check(Nothing(), Case(((1, 2, 3),), (2, Crop(1), 1)))

    class Forgets(Nothing):
        new_cache = models.Summing.new_cache

    with pytest.raises(InvalidSubject, match=r"crop\(\) should return the cache, got None"):
        kvfuzz.check(Forgets(), case)
