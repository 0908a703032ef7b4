"""Rows of one cache that roll back by different counts."""

import pytest
import torch
from hypothesis import settings
from hypothesis.stateful import run_state_machine_as_test

import kvfuzz
from kvfuzz.case.case import Case
from kvfuzz.case.layout import fed_positions
from kvfuzz.case.schedule import Crop, Fork, Padded, Reorder, Reset, Rollback
from kvfuzz.errors import InvalidCase, InvalidSubject
from kvfuzz.oracle.laws import check_companion
from kvfuzz.report.text import hunt_text
from kvfuzz.search.rounds import draw_cases
from kvfuzz.search.strategies import space_of
from kvfuzz.subjects.loading import as_factory, load
from kvfuzz.subjects.zoo.presets import PRESETS
from kvfuzz.testing.state_machine import new_program
from tests.seeds import SEEDS
from tests.subjects import rows as subjects
from tests.subjects.operated import RingDecoder

TOKENS = ((1, 2, 3, 4, 5, 6), (7, 8, 9, 10, 11, 12))


def drawn(subject, seed=0, examples=200):
    return draw_cases(space_of(as_factory(subject)), seed, examples)


def rollbacks(case):
    return [entry for entry in case.schedule if isinstance(entry, Rollback)]


def test_each_row_continues_at_its_own_length():
    case = Case(TOKENS, (4, Rollback((1, 3)), 2))
    _, rollback, last = case.steps()
    assert rollback.kind == "rollback"
    assert rollback.after == ((1, 2, 3), (7, None, None))
    assert fed_positions(last) == [[3, 4], [1, 2]]
    assert kvfuzz.check(subjects.Rows(), case).status == "agreed"


def test_a_row_that_has_fewer_is_emptied():
    case = Case(TOKENS, (4, Rollback((0, 9)), 1, 1))
    assert list(case.steps())[2].after[1] == (None,) * 4 + (11,)
    assert kvfuzz.check(subjects.Rows(), case).status == "agreed"
    whole = Case(TOKENS, (4, Rollback((4, 9)), 2))
    assert [step.kind for step in whole.steps()] == ["prefill", "rollback", "prefill"]


@pytest.mark.parametrize(
    ("schedule", "given", "words"),
    [
        ((4, Rollback((1,)), 2), (), "a count for each of 2 rows"),
        ((4, Rollback((0, 0)), 2), (), "one above 0"),
        ((4, Rollback((-1, 1)), 2), (), "counts of 0 or more"),
        ((Rollback((1, 1)), 6), (), "a cache that holds something"),
        ((4, Rollback((1, 0)), 2), ("mask",), "no mask"),
        ((2, Rollback((1, 0)), 2, Crop(1), 2), (), "nothing has made unequal"),
    ],
)
def test_a_rollback_that_makes_no_sense_is_refused(schedule, given, words):
    with pytest.raises(InvalidCase, match=words):
        Case(TOKENS, schedule, given=given)


def test_a_rollback_stays_in_the_file():
    case = Case(TOKENS, (4, Rollback((1, 3)), 2))
    assert case.to_json()["schedule"] == [4, ["rollback", [1, 3]], 2]
    assert Case.from_json(case.to_json()) == case


def test_the_method_gets_int64_counts_and_has_two_arguments():
    got = []

    class Told(subjects.Rows):
        def rollback(self, cache, counts):
            got.append(counts)
            return super().rollback(cache, counts)

    kvfuzz.check(Told(), Case(TOKENS, (4, Rollback((1, 3)), 2)), probe=False)
    assert got[0].dtype == torch.int64
    assert got[0].tolist() == [1, 3]
    wrong = type("Wrong", (subjects.Rows,), {"rollback": lambda self, cache: cache})
    with pytest.raises(InvalidSubject, match=r"rollback\(cache, counts\)"):
        kvfuzz.fuzz(wrong)


@pytest.mark.parametrize("name", sorted(PRESETS))
def test_every_storage_of_the_zoo_rolls_rows_back(name):
    """Or refuses it; past windows, forked, reordered, and more than once."""
    factory = load(f"zoo:{name}")
    schedules = (
        (4, Rollback((1, 3)), 2),
        (3, Rollback((2, 0)), Reorder((1, 0)), 1, Fork(), 1, Rollback((0, 1)), 1),
        (3, Rollback((3, 1)), 1, Rollback((2, 1)), 1, Reset(), 1),
    )
    for schedule in schedules:
        case = Case(TOKENS, schedule, dtype=factory.dtypes[-1], config=factory.first_config())
        found = kvfuzz.check(factory.subject(case), case)
        refused = "rollback refused" in str(found.reason)
        assert found.status == "agreed" or (refused and name in ("recurrent", "ring", "gemma"))


@pytest.mark.parametrize("seed", SEEDS)
def test_rows_of_their_own_length_agree(seed):
    hunt = kvfuzz.fuzz(subjects.Rows, seed=seed, examples=40)
    assert (hunt.verdict, hunt.discarded) == ("agreed", 0)
    assert hunt.exercised["rollback"] >= 5


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize(
    "subject",
    [
        subjects.RollsAllBackAlike,
        subjects.RollsOneTooFewBack,
        subjects.ContinuesAtTheLongest,
        subjects.SeesWhatWasDropped,
    ],
)
def test_a_wrong_rollback_diverges_and_shrinks(subject, seed):
    hunt = kvfuzz.fuzz(subject, seed=seed, locate=False)
    assert hunt.verdict == "diverged"
    case = hunt.failure.case
    assert case.batch <= 2
    assert max(rollbacks(case)[0].counts) == 1
    assert "rollback [" in hunt_text(hunt)


def test_rollbacks_are_drawn_where_they_are_offered():
    """With counts that differ, without a mask, also more than once in a program."""
    cases = [case for case in drawn(subjects.Rows) if rollbacks(case)]
    assert len(cases) >= 10
    assert any(len(set(entry.counts)) > 1 for case in cases for entry in rollbacks(case))
    assert any(len(rollbacks(case)) > 1 for case in cases)
    assert not any(map(rollbacks, drawn(RingDecoder)))
    drawn_for_zoo = drawn("zoo")
    zoo = [case for case in drawn_for_zoo if rollbacks(case)]
    assert len(zoo) >= 10
    assert not any("mask" in case.given for case in zoo)
    assert any(isinstance(entry, Padded) for case in drawn_for_zoo for entry in case.schedule)


def test_a_refused_rollback_is_no_divergence():
    hunt = kvfuzz.fuzz(subjects.RollbackRefused, seed=0, examples=30)
    assert hunt.verdict == "agreed"
    assert hunt.discarded > 0


def test_the_frame_law_says_nothing_about_rows_of_unequal_length():
    case = Case(TOKENS, (4, Rollback((1, 3)), 2), config=load("zoo").first_config())
    found = check_companion("frame", load("zoo").subject(case), case)
    assert found.status == "discarded"
    assert "length" in found.reason


@pytest.mark.parametrize("law", ["causality", "isolation", "repeatability"])
def test_the_other_laws_hold(law):
    case = Case(TOKENS, (4, Rollback((1, 3)), 2))
    assert check_companion(law, subjects.Rows(), case).status == "agreed"


def test_a_state_machine_rolls_rows_back():
    """Its rule is there, and what it has rolled back is judged."""
    few = settings(max_examples=5, stateful_step_count=8, deadline=None, derandomize=True)
    run_state_machine_as_test(kvfuzz.state_machine(subjects.Rows), settings=few)
    for subject in (subjects.Rows, subjects.RollsAllBackAlike):
        machine = kvfuzz.state_machine(subject)()
        machine.program = new_program(machine.space, 2)
        machine.columns = [(1, 5), (2, 6), (3, 7), (4, 8)]
        machine.program.add("feed", 3, ())
        machine.rollback(1, (0, 1))
        machine.program.add("feed", 1, ())
        assert machine.program.schedule() == (3, Rollback((0, 1)), 1)
        if subject is subjects.Rows:
            machine.teardown()
            continue
        with pytest.raises(kvfuzz.Diverges):
            machine.teardown()
