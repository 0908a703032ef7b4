"""Two caches on one model, caches one after the other, and rows in other company."""

import pytest

import kvfuzz
from kvfuzz.case.case import Case
from kvfuzz.case.schedule import Crop, Fork, New, Reset, Switch
from kvfuzz.errors import InvalidCase
from kvfuzz.oracle.laws import check_companion
from kvfuzz.report.text import hunt_text
from kvfuzz.search.programs import focuses
from kvfuzz.search.rounds import draw_cases
from kvfuzz.search.second_cache import NOTE, one_after_the_other, run_twice
from kvfuzz.search.strategies import space_of
from kvfuzz.subjects.loading import as_factory
from kvfuzz.subjects.protocol import NO_HANDLE, ONE_CACHE
from kvfuzz.subjects.run import last_uses, run_cached
from tests.seeds import SEEDS
from tests.subjects import second_caches as subjects

INTERLEAVED = (2, New(1), 1, Switch(0), 1)
ROWS = ((1, 2, 3, 4), (5, 6, 7, 8))


def hunted(subject, seed=0, **settings):
    return kvfuzz.fuzz(subject, seed=seed, **settings)


def kinds_of(case):
    return {step.kind for step in case.steps()}


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize(
    "subject",
    [
        subjects.CountsOnTheModel,
        subjects.CountsOn,
        subjects.SecondIsTheFirst,
        subjects.SharesABuffer,
        subjects.InTheModelAndCountsOn,
        subjects.LeakyPool,
        subjects.PoolByRow,
        subjects.RowsReadTheFirst,
    ],
)
def test_three_methods_are_enough_to_find_it(subject, seed):
    """A hunt by default, under every seed."""
    assert hunted(subject, seed, locate=False, shrink_passes=0).verdict == "diverged"


@pytest.mark.parametrize(
    "subject",
    [
        subjects.Right,
        subjects.InTheModel,
        subjects.OneAtATime,
        subjects.Pool,
        subjects.SmallPool,
    ],
)
def test_a_right_one_agrees(subject):
    """Also one that holds one cache at a time, a pool that is told when a cache is done, and one
    that refuses a cache for which it has no room."""
    assert hunted(subject, examples=30).verdict == "agreed"


def test_a_quarter_of_the_cases_has_more_caches_than_one():
    """The rest are plain; some go back to an earlier cache, some never do."""
    drawn = draw_cases(space_of(as_factory(subjects.Right)), 0, 200)
    more = [case for case in drawn if not case.is_plain]
    back = [case for case in more if "switch" in kinds_of(case)]
    assert 40 <= len(more) <= 60
    assert min(len(back), sum("new" in kinds_of(case) for case in more) - len(back)) >= 5
    assert any(sum(step.kind == "new" for step in case.steps()) == 2 for case in more)


def test_a_subject_that_offers_no_operation_has_one_focus_more():
    """An offer that no step needs changes nothing."""
    assert focuses(frozenset()) == focuses(frozenset({"view", "release"})) == ("new",)
    assert {"new", "switch", "mixed"} < set(focuses(frozenset({"crop"})))


@pytest.mark.parametrize(
    ("subject", "place"),
    [
        (subjects.CountsOnTheModel, "self.place(torch.arange(start"),
        (subjects.InTheModelAndCountsOn, "self.place(torch.arange(start"),
    ],
)
def test_the_line_that_reads_the_counter_is_named(subject, place):
    """Also where the law of repeatability found it, in a case that ran twice."""
    hunt = hunted(subject)
    assert hunt.failure.verdict.law == "agreement"
    assert place in str(hunt.explanation.location.first.source.text)


@pytest.mark.parametrize("subject", [subjects.CountsOnTheModel, subjects.SharesABuffer])
def test_a_second_cache_that_did_it_is_named_with_the_way_out(subject):
    """The words stand where the same calls agree with the caches one after the other."""
    assert NOTE in hunt_text(hunted(subject))
    assert ONE_CACHE in NOTE


@pytest.mark.parametrize("subject", [subjects.InTheModelAndCountsOn, subjects.CountsOn])
def test_a_fault_that_needs_no_second_cache_is_not_explained_by_it(subject):
    """A declaration would not help."""
    assert NOTE not in hunt_text(hunted(subject))


def test_a_cache_in_the_model_is_recognised_and_the_verdict_says_so():
    """Nothing is handed out, so no two caches could be told apart; who wants two says so."""
    hunt = hunted(subjects.InTheModel, examples=30)
    assert NO_HANDLE in hunt.offers
    assert "which holds one at a time; two at once were not drawn" in hunt_text(hunt)
    assert hunt.not_exercised()["switch"] == "one cache at a time"
    assert hunted(subjects.TwoAtATime, locate=False).verdict == "diverged"


@pytest.mark.parametrize("subject", [subjects.Right, subjects.SecondIsTheFirst, subjects.Pool])
def test_a_cache_that_is_handed_out_is_none_in_the_model(subject):
    """An object may be shared by mistake, so it is held to the contract."""
    assert NO_HANDLE not in as_factory(subject).limits().offers


def test_a_declared_single_cache_is_never_gone_back_to():
    """Neither in a hunt nor in a case by hand."""
    drawn = draw_cases(space_of(as_factory(subjects.OneAtATime)), 0, 100)
    assert all(not {"switch", "fork"} & kinds_of(case) for case in drawn)
    assert any("new" in kinds_of(case) for case in drawn)
    with pytest.raises(InvalidCase, match="declares one_cache_at_a_time, and this case goes back"):
        kvfuzz.check(subjects.OneAtATime(), Case(ROWS, INTERLEAVED))


def test_each_cache_is_released_once_after_its_last_step():
    """Also when a step raises; a cache that a later step uses is not."""
    events = []

    class Notes(subjects.Right):
        def new_cache(self, batch):
            return super().new_cache(batch) | {"name": len(events)}

        def cached(self, tokens, cache):
            events.append(("fed", cache["name"]))
            if len(tokens[0]) == 3:
                raise ValueError
            return super().cached(tokens, cache)

        def release(self, cache):
            events.append(("released", cache["name"]))

    run_cached(Notes(), Case(ROWS, (2, New(1), 1, Switch(0), 1)))
    assert events == [
        ("fed", 0), ("fed", 1), ("released", 1), ("fed", 0), ("released", 0),
    ]  # fmt: skip
    events.clear()
    assert kvfuzz.check(Notes(), Case(ROWS, (1, 3))).error is not None
    assert events[-3:] == [("fed", 0), ("fed", 0), ("released", 0)]


def test_the_last_use_of_a_cache_counts_copies():
    """A fork uses the cache that it copies."""
    case = Case(((1, 2, 3),), (1, Fork(), 1, New(1), 1))
    assert last_uses(case) == {0: 1, 1: 2, 2: 4}


def test_steps_are_put_one_cache_after_the_other():
    """With the columns that they fed; a cache that is fed nothing is left out."""
    case = Case(((1, 2, 3, 4, 5),), (2, New(1), 1, Switch(0), Crop(1), 1, Switch(1), 1))
    apart = one_after_the_other(case)
    assert apart.schedule == (2, Crop(1), 1, New(1), 1, 1)
    assert apart.tokens == ((1, 2, 4, 3, 5),)
    assert one_after_the_other(Case(((1, 2),), (1, New(1), Switch(0), 1))).schedule == (1, 1)
    assert one_after_the_other(Case(ROWS, (New(1), 2, New(2), 1, Switch(0), 1))).schedule == (
        New(1), 2, 1, New(2), 1,
    )  # fmt: skip
    assert one_after_the_other(Case(((1, 2),), (1, New(1), 1))) is None
    assert one_after_the_other(Case(((1, 2),), (1, Fork(), Switch(0), 1))) is None


def test_a_case_is_run_twice_in_one_program():
    """A plain one only."""
    assert run_twice(Case(((1, 2),), (1, 1))) == Case(((1, 2, 1, 2),), (1, 1, New(1), 1, 1))
    assert run_twice(Case(((1, 2),), (1, Reset(), 1))) is None


@pytest.mark.parametrize("rows", [ROWS, (*ROWS, (9, 9, 1, 1), (3, 1, 4, 1))])
def test_every_row_is_held_to_other_company(rows):
    """The row that others read is the first."""
    case = Case(rows, (3, 1))
    assert kvfuzz.check(subjects.RowsReadTheFirst(), case).status == "agreed"
    verdict = check_companion("isolation", subjects.RowsReadTheFirst(), case)
    assert (verdict.status, verdict.law) == ("diverged", "isolation")
    assert check_companion("isolation", subjects.Right(), case).status == "agreed"


def test_rows_that_share_are_not_blamed_on_causality():
    """That law runs changed copies in one batch. Of one row alone it says nothing wrong."""
    verdict = check_companion("causality", subjects.RowsReadTheFirst(), Case(ROWS, (3, 1)))
    assert (verdict.status, verdict.law) == ("diverged", "isolation")
    alone = check_companion("causality", subjects.RowsReadTheFirst(), Case(ROWS[:1], (3, 1)))
    assert (alone.status, alone.law) == ("agreed", "causality")
