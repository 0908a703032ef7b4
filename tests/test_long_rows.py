"""Rows of more than 20 tokens: few, affordable, and over every boundary that is known."""

from collections import Counter
from dataclasses import replace

import pytest

from kvfuzz import fuzz
from kvfuzz.case.case import Case
from kvfuzz.case.features import longest_read
from kvfuzz.case.schedule import Crop, Fork, New, Padded, Reset, Switch
from kvfuzz.report.text import hunt_text
from kvfuzz.search.crossings import crossings
from kvfuzz.search.hypothesis_run import TARGETED
from kvfuzz.search.long_rows import climbs, draw_climb, tops_of
from kvfuzz.search.rounds import ROUND, draw_cases
from kvfuzz.search.strategies import FARTHEST, LONGEST, ORDINARY, Space, space_of
from kvfuzz.subjects.boundaries import Boundary
from kvfuzz.subjects.call_limits import CallLimits
from kvfuzz.subjects.loading import as_factory, load
from kvfuzz.subjects.protocol import Factory, Limits
from tests.subjects import long_rows

MORE = pytest.mark.full(reason="the same promise under other seeds, a second each")
SEEDS = [0, *(pytest.param(seed, marks=MORE) for seed in (1, 2, 3, 4))]
BLOCKY = Space(
    50, LONGEST, ("float32",), reach=300, boundaries=(Boundary(64, "STEP"), Boundary(128))
)


def long_cases(space, rounds):
    """The long cases alone of that many rounds."""
    return [
        draw_climb(space, climb, seed=climb.number)
        for index in range(rounds)
        for climb in climbs(space, index, ROUND)
    ]


def steps_over(case, boundary):
    """The feeding steps of `case` that read a cache and take it past `boundary`."""
    return [
        step
        for step in case.steps()
        if step.feeds and 0 < len(step.before[0]) <= boundary < len(step.after[0])
    ]


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize(
    "wrong",
    [
        long_rows.ForgetsOne,
        long_rows.Overflows,
        long_rows.LosesOneAsItGrows,
        long_rows.CropsTooMuch,
        long_rows.ForksTheFirstBlock,
    ],
)
def test_a_fault_beyond_twenty_tokens_is_found_by_default(wrong, seed):
    """An entry forgotten, NaN, growth, a crop and a fork beyond a block: nobody has to ask for
    longer rows."""
    assert fuzz(wrong, seed=seed, locate=False, shrink_passes=0).verdict == "diverged"


@pytest.mark.parametrize(
    "right",
    [
        long_rows.Stored,
        *(
            pytest.param(kind, marks=MORE)
            for kind in (long_rows.Grows, long_rows.Cropping, long_rows.Forking)
        ),
    ],
)
def test_the_same_decoders_without_the_fault_agree(right):
    """Long rows raise no false alarm."""
    assert fuzz(right, seed=0).verdict == "agreed"


def test_a_fault_beyond_twenty_tokens_shrinks_to_the_least_length():
    """From wherever the long row crossed it."""
    hunt = fuzz(long_rows.ForgetsOne, seed=0, locate=False)
    assert hunt.failure.done
    assert hunt.failure.case.length == long_rows.KEPT + 2
    hunt = fuzz(long_rows.Overflows, seed=1, locate=False)
    assert hunt.failure.case.length == 71


@pytest.mark.parametrize("seed", [0, 1])
def test_a_fault_beyond_two_hundred_tokens_shrinks_within_its_bound(seed):
    """The calls that only carry a row to its boundary become one, and it gets shorter by more than
    one token at a time."""

    class Late(long_rows.ForgetsOne):
        max_length, kept = 300, 200

    hunt = fuzz(Late, seed=seed, locate=False)
    assert (hunt.failure.done, hunt.failure.case.schedule) == (True, (201, 1))


@pytest.mark.parametrize("seed", SEEDS)
def test_few_rows_are_long_and_their_tokens_are_bounded(seed):
    """Of the tokens that a hunt feeds, long rows are at most two fifths, in at most one case of
    twelve."""
    cases = draw_cases(BLOCKY, seed, 200)
    long = [case for case in cases if case.length > LONGEST]
    assert 4 <= len(long) <= 200 // 12
    fed = [sum(len(row) for row in case.tokens) for case in cases]
    longer = [sum(len(row) for row in case.tokens) for case in long]
    assert sum(longer) <= 0.4 * sum(fed)
    assert max(len(case.schedule) for case in long) <= 40


@pytest.mark.parametrize("seed", SEEDS)
def test_every_boundary_is_crossed_by_a_chunk_and_by_single_tokens(seed):
    """A block that grows in a chunk is another line than one that grows in a decode."""
    cases = draw_cases(BLOCKY, seed, 200)
    for boundary in (64, 128, 256):
        sizes = Counter(min(step.size, 2) for case in cases for step in steps_over(case, boundary))
        assert set(sizes) >= ({1, 2} if boundary < 256 else set()), boundary
        assert sizes, boundary


def test_programs_with_operations_reach_boundaries():
    """A crop back across it, a fork and a reset beyond it, a second cache, padding."""
    offers = frozenset({"crop", "copy", "reset", "reorder", "mask", "positions_from_mask"})
    cases = long_cases(replace(BLOCKY, offers=offers), 40)
    kinds = {
        type(step.operation)
        for case in cases
        for step in case.steps()
        if len(step.before and step.before[0]) > 64
    }
    assert kinds >= {Crop, Fork, Reset}
    assert any(isinstance(entry, Padded) for case in cases for entry in case.schedule)
    assert any(isinstance(entry, New | Switch) for case in cases for entry in case.schedule)
    crops = [
        (len(step.before[0]), len(step.after[0]))
        for case in cases
        for step in case.steps()
        if isinstance(step.operation, Crop)
    ]
    assert any(after <= top < before for before, after in crops for top in (64, 128))


def test_only_what_a_subject_offers_is_in_long_rows():
    """Also that it holds one cache at a time."""
    for offers in (frozenset(), frozenset({"one_cache_at_a_time"})):
        for case in long_cases(replace(BLOCKY, offers=offers), 30):
            kinds = {step.kind for step in case.steps()}
            assert kinds <= {"prefill", "extend", "decode", "new", "switch"}
            assert not (offers and "switch" in kinds)


def test_a_long_row_is_fed_by_few_calls_whatever_calls_are_taken():
    """A filled cache that takes single tokens only gets one prefill up to the boundary."""
    for calls in (CallLimits(chunks=False), CallLimits(longest=8), CallLimits(multiple=4)):
        cases = long_cases(replace(BLOCKY, calls=calls), 12)
        assert max(longest_read(case) for case in cases) > 256
        assert all(calls.refused_step(case) is None for case in cases)
        assert max(len(case.schedule) for case in cases) <= 60

    class Shortest(long_rows.Unlimited):
        longest_call = 1

    assert space_of(as_factory(Shortest)).reach == 64


def test_rounds_take_turns_and_keep_their_budget():
    """The first long row of a round may be dear; each top is first in some round."""
    tops = tops_of(BLOCKY)
    assert tops == [64, 128, 256]
    firsts = [climbs(BLOCKY, index, ROUND)[0].top for index in range(3)]
    assert firsts == [64, 256, 128]
    asked = replace(BLOCKY, max_length=300)
    assert [climbs(asked, index, ROUND)[0].top for index in range(4)] == [300, 256, 128, 64]
    for index in range(4):
        drawn = climbs(BLOCKY, index, ROUND)
        assert sum(climb.top for climb in drawn[1:]) <= 6 * ROUND
        assert len(drawn) <= ROUND // 12
    numbers = [climb.number for index in range(4) for climb in climbs(BLOCKY, index, ROUND)]
    assert len(set(numbers)) == len(numbers)
    assert climbs(BLOCKY, 0, 11) == []
    assert climbs(replace(BLOCKY, reach=3, boundaries=()), 0, ROUND) == []


@pytest.mark.parametrize("examples", [ROUND, TARGETED])
def test_long_rows_are_the_same_for_the_same_seed(examples):
    """In rounds that climb the excess, too."""
    once = draw_cases(BLOCKY, 3, examples)
    assert once == draw_cases(BLOCKY, 3, examples)
    assert [c for c in once if c.length > LONGEST] != [
        c for c in draw_cases(BLOCKY, 4, examples) if c.length > LONGEST
    ]


class Wide(Factory):
    """A factory of subjects with a vocabulary as large as that of GPT-2."""

    def limits(self):
        return Limits(50_257, None)


def test_what_is_affordable_bounds_long_rows():
    """A subject that takes rows of any length gets 520 tokens; one with a large vocabulary fewer,
    one that takes fewer those."""
    unlimited = space_of(as_factory(long_rows.Unlimited))
    assert (unlimited.max_length, unlimited.reach) == (LONGEST, FARTHEST)
    assert space_of(Wide("wide", long_rows.Unlimited, ("float32",))).reach == 83
    assert space_of(load("zoo")).reach == 64
    assert space_of(load("tests.subjects.models:ShortSighted")).reach == 3


def test_max_length_is_a_maximum_and_raises_the_reach():
    """Ordinary rows do not become thousands of single tokens."""
    for most in (5, 60, 700):
        space = space_of(as_factory(long_rows.Unlimited), most)
        cases = draw_cases(space, 0, 100)
        assert max(case.length for case in cases) <= most
        assert max(longest_read(case) for case in cases) == most
        assert sum(case.length > ORDINARY for case in cases) <= 8


def test_the_report_names_the_longest_row_and_the_boundaries():
    """What was crossed, and what not, with a reason each."""
    hunt = fuzz(long_rows.Grows, seed=0)
    assert hunt.longest == 150
    text = hunt_text(hunt)
    assert "longest row 150; crossed" in text
    assert "48 (BLOCK, long_rows.py:9)" in text
    known = {one["value"]: one for one in hunt.to_json()["boundaries"]}
    assert known[48] == {
        "value": 48, "name": "BLOCK", "place": "long_rows.py:9", "crossed": True, "reason": None,
    }  # fmt: skip


def test_a_boundary_that_was_not_crossed_has_a_reason():
    """Beyond the subject, beyond the draws of a default hunt, beyond those of this one, or just not
    drawn."""
    known = tuple(map(Boundary, (10, 30, 100, 150, 4096)))
    space = Space(50, 20, ("float32",), reach=90, boundaries=known, limit=100)
    assert [one.reason for one in crossings(space, 20)] == [
        None,
        "not drawn: a hunt of more cases may",
        "beyond what a default hunt draws: --max-length 100",
        "beyond max_length 100",
        "beyond max_length 100",
    ]
    assert crossings(space, 100)[2].reason is None
    asked = replace(space, max_length=90, limit=None)
    assert crossings(asked, 90)[4].reason == "beyond what this hunt draws: --max-length 4097"


def test_only_a_call_that_reads_its_cache_crosses_anything():
    """One prefill of 70 tokens reads none."""
    row = tuple(range(70))
    assert longest_read(Case((row,), (70,))) == 0
    assert longest_read(Case((row,), (69, 1))) == 70
    assert longest_read(Case((row,), (60, New(1), 5, 5))) == 10
