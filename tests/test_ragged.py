"""Calls in which each row takes its own number of tokens."""

import pytest
import torch

import kvfuzz
from kvfuzz.case.case import Case
from kvfuzz.case.features import features_of
from kvfuzz.case.layout import fed_positions
from kvfuzz.case.schedule import Crop, Padded, Ragged, Reorder, Rollback
from kvfuzz.errors import InvalidCase
from kvfuzz.oracle.laws import check_companion
from kvfuzz.report.text import hunt_text
from kvfuzz.search.programs import focuses
from kvfuzz.search.rounds import draw_cases
from kvfuzz.search.strategies import space_of
from kvfuzz.subjects.loading import as_factory, load
from kvfuzz.subjects.protocol import offers_of
from kvfuzz.subjects.zoo.presets import PRESETS
from kvfuzz.testing.state_machine import new_program
from tests.seeds import SEEDS
from tests.subjects import rows as subjects

TOKENS = ((1, 2, 3, 4, 5, 6), (7, 8, 9, 10, 11, 12))


def drawn(subject):
    return draw_cases(space_of(as_factory(subject)), seed=0, examples=80)


def ragged(case):
    return [entry for entry in case.schedule if isinstance(entry, Ragged)]


def test_each_row_takes_its_own_number_of_tokens():
    case = Case(TOKENS, (Ragged((3, 1)), Ragged((0, 2)), 1))
    first, second, last = case.steps()
    assert (first.kind, second.kind, last.kind) == ("prefill", "extend", "decode")
    assert first.after == ((1, 2, 3), (7, None, None))
    assert last.after == ((1, 2, 3, None, None, 6), (7, None, None, 10, 11, 12))
    assert fed_positions(last) == [[3], [3]]
    assert "ragged" in features_of(case)
    assert kvfuzz.check(subjects.Ragged(), case).status == "agreed"


@pytest.mark.parametrize(
    ("schedule", "given", "words"),
    [
        ((Ragged((6,)),), (), "a length for each of 2 rows"),
        ((Ragged((6, -1)),), (), "lengths of 0 or more"),
        ((3, Ragged((0, 0)), 3), (), "positive chunk sizes"),
        ((3, Ragged((2, 1)), 4), (), "sum to the 6 tokens"),
        ((Ragged((6, 1)),), ("mask",), "no mask"),
        ((Ragged((4, 1)), Crop(1), 2), (), "nothing has made unequal"),
    ],
)
def test_a_ragged_call_that_makes_no_sense_is_refused(schedule, given, words):
    with pytest.raises(InvalidCase, match=words):
        Case(TOKENS, schedule, given=given)


def test_a_subject_without_lengths_gets_no_ragged_call():
    with pytest.raises(InvalidCase, match=r"no argument lengths of cached\(\)"):
        kvfuzz.check(subjects.Rows(), Case(TOKENS, (Ragged((6, 1)),)))
    assert "ragged" not in focuses(offers_of(subjects.Rows()))
    assert "ragged" in focuses(offers_of(subjects.Ragged()))


def test_a_ragged_call_stays_in_the_file():
    case = Case(TOKENS, (Ragged((3, 1)), 3))
    assert case.to_json()["schedule"] == [["ragged", [3, 1]], 3]
    assert Case.from_json(case.to_json()) == case


def test_lengths_are_int64_and_given_in_ragged_calls_alone():
    got = []

    class Told(subjects.Ragged):
        def cached(self, tokens, cache, *, lengths=None):
            got.append(lengths)
            return super().cached(tokens, cache, lengths=lengths)

    kvfuzz.check(Told(), Case(TOKENS, (2, Ragged((1, 2)), 2)), probe=False, trace=False)
    assert got[0] is None
    assert got[1].dtype == torch.int64
    assert got[1].tolist() == [1, 2]
    assert got[2] is None


@pytest.mark.parametrize("name", sorted(PRESETS))
def test_every_storage_of_the_zoo_takes_ragged_calls(name):
    factory = load(f"zoo:{name}")
    for schedule in ((Ragged((3, 1)), Ragged((0, 2)), 1), (2, Ragged((1, 3)), Reorder((1, 0)), 1)):
        case = Case(TOKENS, schedule, dtype=factory.dtypes[-1], config=factory.first_config())
        assert kvfuzz.check(factory.subject(case), case).status == "agreed"


@pytest.mark.parametrize("seed", SEEDS)
def test_a_decoder_that_takes_ragged_calls_agrees(seed):
    hunt = kvfuzz.fuzz(subjects.Ragged, seed=seed, examples=60)
    assert (hunt.verdict, hunt.discarded) == ("agreed", 0)
    assert hunt.exercised["ragged"] >= 5


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize(
    "subject",
    [
        subjects.TakesWhatFillsUp,
        subjects.TakesTheLengthsOfOtherRows,
        subjects.LosesAnIdleRow,
        subjects.StoresWhatFillsUp,
    ],
)
def test_a_wrong_ragged_call_diverges_and_shrinks(subject, seed):
    hunt = kvfuzz.fuzz(subject, seed=seed, locate=False)
    assert hunt.verdict == "diverged"
    case = hunt.failure.case
    assert case.batch <= 2
    assert case.length <= 3
    assert "ragged [" in hunt_text(hunt)


def test_ragged_calls_are_drawn_where_they_are_offered():
    """Of rows that differ, with idle ones, on empty and on filled caches, without a mask."""
    cases = [case for case in drawn(subjects.Ragged) if ragged(case)]
    assert len(cases) >= 5
    entries = [entry for case in cases for entry in ragged(case)]
    assert any(len(set(entry.lengths)) > 1 for entry in entries)
    assert any(0 in entry.lengths for entry in entries)
    fed = [step for case in cases for step in case.steps() if isinstance(step.operation, Ragged)]
    assert {step.filled for step in fed} == {True, False}
    zoo = [case for case in drawn("zoo") if ragged(case)]
    assert len(zoo) >= 2
    assert not any("mask" in case.given for case in zoo)
    assert not any(isinstance(entry, Padded) for case in zoo for entry in case.schedule)


def test_a_crop_of_uneven_rows_is_a_rollback_or_none():
    """A crop drops slots, which rows of unequal length do not share."""
    program = new_program(space_of(as_factory(subjects.Ragged)), 2)
    program.add("ragged", 4, (0, 3))
    program.add("crop", 1, ())
    assert program.entries == [Ragged((4, 1)), Rollback((1, 1))]

    class WithoutRollback(subjects.Ragged):
        rollback = None

    program = new_program(space_of(as_factory(WithoutRollback)), 2)
    program.add("ragged", 4, (0, 3))
    program.add("crop", 1, ())
    assert program.entries == [Ragged((4, 1))]


def test_a_refused_idle_row_is_no_divergence():
    hunt = kvfuzz.fuzz(subjects.RefusesIdleRows, seed=0, examples=40)
    assert hunt.verdict == "agreed"
    assert hunt.discarded > 0


def test_last_only_means_the_last_token_of_each_row():
    case = Case(TOKENS, (Ragged((3, 1)), Ragged((0, 2)), 1))
    assert kvfuzz.check(subjects.LastOfEachRow(), case).status == "agreed"
    found = kvfuzz.check(subjects.LastColumn(), case)
    assert found.status == "diverged"
    assert (found.first.row, found.first.step) == (1, 0)


@pytest.mark.parametrize("law", ["causality", "isolation", "repeatability"])
def test_the_other_laws_hold(law):
    case = Case(TOKENS, (Ragged((4, 1)), 2))
    assert check_companion(law, subjects.Ragged(), case).status == "agreed"


def test_the_frame_law_says_nothing_about_uneven_rows():
    case = Case(TOKENS, (Ragged((4, 1)), 2), config=load("zoo").first_config())
    assert check_companion("frame", load("zoo").subject(case), case).status == "discarded"


def test_a_state_machine_feeds_ragged_calls():
    machine = kvfuzz.state_machine(subjects.TakesWhatFillsUp)()
    machine.program = new_program(machine.space, 2)
    machine.columns = [(1, 5), (2, 6), (3, 7)]
    machine.program.add("ragged", 2, (0, 1))
    machine.program.add("feed", 1, ())
    assert machine.program.schedule() == (Ragged((2, 1)), 1)
    with pytest.raises(kvfuzz.Diverges):
        machine.teardown()
