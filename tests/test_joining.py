"""Rows that join a running batch, and leave it."""

import pytest

import kvfuzz
from kvfuzz.case.case import Case
from kvfuzz.case.features import family, features_of
from kvfuzz.case.layout import fed_positions
from kvfuzz.case.schedule import Crop, Fork, Join, New, Padded, Reorder, Switch
from kvfuzz.errors import InvalidCase, InvalidSubject
from kvfuzz.oracle.laws import check_companion
from kvfuzz.report.text import hunt_text
from kvfuzz.search.programs import focuses
from kvfuzz.search.reductions import fewer_entries
from kvfuzz.search.rounds import draw_cases
from kvfuzz.search.second_cache import one_after_the_other
from kvfuzz.search.strategies import space_of
from kvfuzz.subjects.loading import as_factory, load
from kvfuzz.subjects.protocol import offers_of
from kvfuzz.subjects.run import run_cached
from kvfuzz.subjects.zoo.presets import PRESETS
from kvfuzz.testing.state_machine import new_program
from tests.seeds import SEEDS
from tests.subjects import rows as subjects

TOKENS = ((1, 2, 3, 4, 5, 6), (7, 8, 9, 10, 11, 12), (13, 14, 15, 16, 17, 18))
JOINED = (New(1), 3, New(2), 1, Join(0), 2)
EVEN = (New(1), 2, New(2), 2, Join(0), 2)


def drawn(subject):
    return draw_cases(space_of(as_factory(subject)), seed=0, examples=80)


def joins(case):
    return [entry for entry in case.schedule if isinstance(entry, Join)]


def test_the_rows_of_another_cache_come_after_the_own():
    """Each continues at its own length."""
    case = Case(TOKENS, JOINED)
    join, last = list(case.steps())[-2:]
    assert (join.kind, join.cache, join.source) == ("join", 1, 0)
    assert join.after == ((4, None, None), (10, None, None), (1, 2, 3))
    assert fed_positions(last) == [[1, 2], [1, 2], [3, 4]]
    assert features_of(case) >= {"join", "new"}
    assert family(case) == "several operations"
    assert kvfuzz.check(subjects.Joins(), case).status == "agreed"


def test_joined_rows_leave_by_a_selection():
    case = Case(TOKENS, (New(1), 2, New(2), 1, Join(0), 1, Reorder((2, 0)), 2))
    assert kvfuzz.check(subjects.Joins(), case).status == "agreed"


@pytest.mark.parametrize(
    ("schedule", "given", "words"),
    [
        ((New(1), 2, New(2), 2, Join(1), 2), (), "another of the 2 caches"),
        ((New(1), 2, New(2), 2, Join(2), 2), (), "another of the 2 caches"),
        ((2, New(1), 2, Join(0), 2), (), "at most 3 rows together"),
        ((New(1), 2, New(2), Join(0), 4), (), "two caches that hold something"),
        ((New(1), 2, New(2), 2, Join(0), Switch(0), 2), (), "one of the 2 caches"),
        ((New(1), 2, New(2), 2, Join(0), Join(0), 2), (), "another of the 2 caches"),
        ((New(1), 2, New(2), 2, Join(0), 2), ("mask",), "no mask"),
        ((New(1), 3, New(2), 1, Join(0), Crop(1), 2), (), "nothing has made unequal"),
    ],
)
def test_a_join_that_makes_no_sense_is_refused(schedule, given, words):
    with pytest.raises(InvalidCase, match=words):
        Case(TOKENS, schedule, given=given)


def test_a_join_stays_in_the_file():
    case = Case(TOKENS, JOINED)
    assert case.to_json()["schedule"] == [["new", 1], 3, ["new", 2], 1, ["join", 0], 2]
    assert Case.from_json(case.to_json()) == case


def test_a_method_of_another_signature_is_refused_by_name():
    wrong = type("Wrong", (subjects.Rows,), {"join": lambda self, cache: cache})
    with pytest.raises(InvalidSubject, match=r"join\(cache, other\)"):
        kvfuzz.fuzz(wrong)
    with pytest.raises(InvalidCase, match=r"no method join\(cache, other\)"):
        kvfuzz.check(subjects.Rows(), Case(TOKENS, JOINED))


def test_a_subject_that_holds_one_cache_joins_none():
    one = type("One", (subjects.Joins,), {"one_cache_at_a_time": True})
    assert "join" in focuses(offers_of(subjects.Joins()))
    assert "join" not in focuses(offers_of(one()))
    with pytest.raises(InvalidCase, match="joins two"):
        kvfuzz.check(one(), Case(TOKENS, JOINED))


@pytest.mark.parametrize("name", sorted(PRESETS))
def test_every_storage_of_the_zoo_joins_caches(name):
    """Of equal and of unequal lengths, before and after a crop, a fork, a reorder."""
    factory = load(f"zoo:{name}")
    schedules = (
        JOINED,
        (New(1), 1, New(2), 3, Switch(0), Join(1), 2),
        (New(1), 2, New(2), 2, Join(0), Crop(1), 1, Reorder((2, 0)), Fork(), 1),
    )
    for schedule in schedules:
        case = Case(TOKENS, schedule, dtype=factory.dtypes[-1], config=factory.first_config())
        assert kvfuzz.check(factory.subject(case), case).status == "agreed"


@pytest.mark.parametrize("seed", SEEDS)
def test_a_decoder_that_joins_agrees(seed):
    hunt = kvfuzz.fuzz(subjects.Joins, seed=seed, examples=60)
    assert (hunt.verdict, hunt.discarded) == ("agreed", 0)
    assert hunt.exercised["join"] >= 3


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize(
    "subject",
    [
        subjects.JoinsAtTheOwnLength,
        subjects.JoinsInFront,
        subjects.JoinsTheKeysAlone,
        subjects.JoinsAndStaysEmpty,
    ],
)
def test_a_wrong_join_diverges_and_shrinks(subject, seed):
    hunt = kvfuzz.fuzz(subject, seed=seed, locate=False)
    assert hunt.verdict == "diverged"
    case = hunt.failure.case
    assert case.batch <= 2
    assert case.length <= 4
    assert "join 0" in hunt_text(hunt)


def test_joins_are_drawn_where_they_are_offered():
    """Of rows of equal and of unequal length, without a mask."""
    for subject, least, kinds in ((subjects.Joins, 5, 2), ("zoo", 2, 1)):
        cases = [case for case in drawn(subject) if joins(case)]
        assert len(cases) >= least
        assert len({case.is_uneven for case in cases}) >= kinds
        assert not any("mask" in case.given for case in cases)
        assert not any(isinstance(entry, Padded) for case in cases for entry in case.schedule)


def test_a_refused_join_is_no_divergence():
    hunt = kvfuzz.fuzz(subjects.JoinsEvenRows, seed=0, examples=40)
    assert hunt.verdict == "agreed"
    assert hunt.discarded > 0


def test_a_joined_cache_is_not_released():
    """The cache that took its rows is, once."""
    subject = subjects.JoinsInAPool()
    run_cached(subject, Case(TOKENS, JOINED))
    assert (subject.made, subject.joined, subject.released) == (2, 1, 1)


def test_shrinking_takes_a_join_away_with_the_cache_that_it_needs():
    case = Case(TOKENS, (New(1), 1, New(1), 1, New(1), 2, Join(1), 1, Join(0), 1))
    schedules = {simpler.schedule for simpler in fewer_entries(case, None)}
    assert (New(1), 1, New(1), 2, 1, Join(0), 1) in schedules


def test_caches_that_join_cannot_be_used_one_after_the_other():
    case = Case(TOKENS, (New(1), 1, New(1), 1, Switch(0), 1, Join(1), 3))
    assert one_after_the_other(case) is None


@pytest.mark.parametrize("law", ["causality", "isolation", "repeatability", "frame"])
def test_the_other_laws_hold(law):
    factory = load("zoo:static")
    case = Case(TOKENS, EVEN, config=factory.first_config())
    assert check_companion(law, factory.subject(case), case).status == "agreed"


def test_the_frame_law_sees_entries_that_a_join_changes():
    factory = load("zoo:static")
    case = Case(TOKENS, EVEN, config=factory.first_config())
    subject = factory.subject(case)
    real = subject.join

    def join(cache, other):
        joined = real(cache, other)
        joined.storage.keys[1][2, 0, 1] += 1.0
        return joined

    subject.join = join
    found = check_companion("frame", subject, case)
    assert found.status == "diverged"
    assert "(join): layer 1 changed the keys of slot 1" in found.finding


def test_a_state_machine_joins_caches():
    machine = kvfuzz.state_machine(subjects.JoinsInFront)()
    machine.program = new_program(machine.space, 2, begun=1)
    machine.columns = [(1, 5), (2, 6), (3, 7), (4, 8)]
    machine.program.add("feed", 2, ())
    machine.join("guests", 1)
    machine.program.add("feed", 1, ())
    machine.join("join", 0)
    machine.program.add("feed", 1, ())
    assert machine.program.schedule() == (New(1), 2, New(1), 1, Join(0), 1)
    with pytest.raises(kvfuzz.Diverges):
        machine.teardown()
