"""The hunt: the same seed finds the same, whatever the number of workers; what fails is shrunk."""

import json
from collections import Counter
from dataclasses import fields, replace
from pathlib import Path

import hypothesis
import pytest
import torch
from hypothesis.errors import UnsatisfiedAssumption

import kvfuzz
from kvfuzz.case.case import Case
from kvfuzz.case.schedule import Crop, Fork, Padded
from kvfuzz.case.verdict import Verdict
from kvfuzz.errors import Inconclusive, InvalidSubject, UsageError
from kvfuzz.report.text import hunt_text
from kvfuzz.search.causes import Cause
from kvfuzz.search.hunt import FuzzKeywords, FuzzSettings, fuzz
from kvfuzz.search.hypothesis_run import DrawnRound
from kvfuzz.search.long_rows import climbs
from kvfuzz.search.replay import replay
from kvfuzz.search.rounds import Plan, draw_cases
from kvfuzz.search.strategies import Balance, space_of
from kvfuzz.search.tally import Failure, Tally
from kvfuzz.subjects.loading import Options, as_factory, load
from kvfuzz.testing.assertions import assert_agrees
from tests.shrinking import smallest
from tests.subjects import models, raising

MODELS = "tests.subjects.models"


def test_a_right_decoder_agrees():
    """All cases are run, all positions of all rows compared."""
    hunt = fuzz(models.Summing, examples=60, seed=1)
    assert (hunt.verdict, hunt.cases, hunt.seed, hunt.failure) == ("agreed", 60, 1, None)
    assert hunt.positions > 60
    assert hunt.worst_excess <= 0.5


@pytest.mark.parametrize("seed", range(10))
def test_a_wrong_decode_shrinks_to_one_prefill_and_one_decode(seed):
    """The smallest story of the bug, from every seed."""
    hunt = fuzz(models.ForgetsOnDecode, seed=seed)
    case = hunt.failure.case
    assert (case.tokens, case.schedule, case.seed) == (((0, 0),), (1, 1), 0)


def test_a_path_that_raises_shrinks_to_the_smallest_case_that_raises():
    """Two tokens on a cache of one."""
    hunt = fuzz(raising.RaisesOnChunks, seed=0)
    assert hunt.failure.case.schedule == (1, 2)
    assert "RuntimeError: only one token at a time" in hunt.failure.verdict.error


def test_a_hunt_that_compared_nothing_is_inconclusive():
    """NaN in both paths, or nothing but noughts, is no agreement."""
    for subject, reason in ((raising.NanInBoth, "both paths gave NaN"), (models.Zero, "zero")):
        hunt = fuzz(subject, examples=20, seed=0)
        assert (hunt.verdict, hunt.positions, hunt.discarded) == ("inconclusive", 0, hunt.cases)
        assert reason in hunt.reasons[0]


def test_discarded_cases_are_counted_beside_the_compared_ones():
    """Where both paths raise on some cases, others are drawn in their place."""
    hunt = fuzz(raising.RaisesOnLongRows, examples=100, seed=0)
    assert hunt.verdict == "agreed"
    assert 0 < hunt.discarded < hunt.cases
    assert 100 < hunt.cases <= 200


def test_what_keeps_failing_is_not_drawn_again_for_ever():
    """As often as there are examples, and no more."""
    assert fuzz(raising.NanInBoth, examples=20, seed=0).cases == 40


def test_a_hunt_that_never_read_a_cache_is_inconclusive():
    """One call on an empty cache agrees, and shows nothing about caches."""
    hunt = fuzz(raising.RaisesInBoth, examples=50, seed=0)
    assert (hunt.verdict, hunt.read) == ("inconclusive", 0)
    assert hunt.positions > 0
    alone = fuzz(models.Summing, examples=20, max_length=1, seed=0)
    assert (alone.verdict, alone.reasons) == ("inconclusive", ())
    assert "no case called its cache twice" in hunt_text(alone)


def test_a_keyword_is_known_by_its_former_name_too():
    """With a warning; a keyword that never was is refused as by any function."""
    with pytest.warns(DeprecationWarning, match="'longest' of kvfuzz.fuzz is now called 'max_len"):
        hunt = fuzz(models.Summing, examples=20, longest=1, seed=0, locate=False)
    with pytest.warns(DeprecationWarning, match="'locating' of kvfuzz.fuzz is now called 'locate'"):
        again = fuzz(models.Summing, examples=20, max_length=1, seed=0, locating=False)
    assert replace(hunt, seconds=0) == replace(again, seconds=0)
    assert (hunt.rows, hunt.weak_rows) == (hunt.positions, hunt.weak_positions)
    assert kvfuzz.state_machine(models.Summing, longest=3).space.max_length == 3
    with pytest.raises(TypeError, match=r"fuzz\(\) .*exampels.*did you mean examples"):
        fuzz(models.Summing, exampels=20)


def test_the_keywords_of_a_hunt_are_its_settings():
    """The two lists that type checkers and readers see do not come apart."""
    assert list(FuzzKeywords.__annotations__) == [each.name for each in fields(FuzzSettings)]


def test_a_subject_that_answers_differently_each_time_is_not_called_agreed():
    """It diverged, and is said to be not repeatable where Hypothesis notices."""
    models.Moody.asked = 0
    assert fuzz(models.Moody, seed=0).verdict == "diverged"


def test_a_protocol_error_is_raised_not_counted():
    """A subject that returns too few logits has no verdict."""
    with pytest.raises(InvalidSubject, match="returned logits of shape"):
        fuzz(raising.LastLogitsOnly, seed=0)


def test_a_counterexample_is_written_and_replays(tmp_path):
    """The file holds what is needed to see it again, and gives the same verdict."""
    hunt = fuzz(f"{MODELS}:ForgetsOnDecode", seed=0, folder=tmp_path)
    data = json.loads(hunt.path.read_text())
    assert data["schema"] == 1
    assert data["subject"] == f"{MODELS}:ForgetsOnDecode"
    assert (data["case"]["tokens"], data["case"]["schedule"]) == ([[0, 0]], [1, 1])
    assert {"kvfuzz", "torch", "threads", "device"} <= set(data)
    assert data["verdict"]["differences"][0][1] == hunt.failure.verdict.first.difference
    again = replay(hunt.path)
    assert again.verdict == hunt.failure.verdict


def test_two_workers_find_what_one_finds():
    """The verdict, the counts and the shrunk case do not depend on the number of workers."""
    for subject in ("zoo:rope", f"{MODELS}:ForgetsOnDecode"):
        one, two = (fuzz(subject, examples=40, seed=3, workers=n) for n in (1, 2))
        names = {each.name for each in fields(Tally)} - {"failures"}
        for name in ("verdict", "failure", *sorted(names)):
            assert getattr(one, name) == getattr(two, name), name


def test_a_tally_is_the_same_after_a_round_trip_through_json():
    """As a worker process sends it, with divergences that were expected."""
    found = fuzz(models.ForgetsOnDecode, seed=0).failure
    failure = Failure(
        found.case, found.verdict, 3, (found.case,), Cause("agreement", "differs", ("x",))
    )
    tally = Tally(cases=3, bases=("measured",), expected=Counter({1: 2}), failures=(failure,))
    assert Tally.from_json(json.loads(json.dumps(tally.to_json()))) == tally


def test_shards_have_seeds_of_their_own_that_hunt_alone():
    """A shard's printed seed gives its cases again, without the shard."""
    first, second = (fuzz("zoo:rope", examples=20, seed=3, shard=(k, 2)) for k in (1, 2))
    assert len({3, first.seed, second.seed}) == 3
    alone = fuzz("zoo:rope", examples=20, seed=first.seed)
    assert (alone.positions, alone.worst_excess) == (first.positions, first.worst_excess)
    assert first.shard == "1/2 of seed 3"


def test_a_time_limit_ends_a_hunt_without_a_number_of_cases():
    """At least a case is run, and then the clock counts."""
    hunt = fuzz("zoo:rope", seconds=0.5, seed=0)
    assert hunt.verdict == "agreed"
    assert hunt.cases >= 1
    assert hunt.seconds < 10


def test_a_time_limit_cuts_a_number_of_cases_short():
    """Whichever comes first."""
    assert fuzz("zoo:rope", seconds=0.2, examples=10**6, seed=0).cases < 10**6


def test_a_seed_is_drawn_when_none_is_given():
    """And it is another one each time."""
    one, two = (fuzz(models.Summing, examples=1).seed for _ in range(2))
    assert one != two


def test_a_stored_example_is_tried_first_unless_a_seed_is_given(tmp_path):
    """A hunt after a failed one starts where that one failed; a seed means the seed's cases."""
    fuzz(models.ForgetsOnDecode, seed=None, database=tmp_path)
    assert fuzz(models.ForgetsOnDecode, database=tmp_path).cases == 1
    assert fuzz(models.ForgetsOnDecode, seed=0, database=tmp_path).cases > 1


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"examples": 0}, "examples should be at least 1, got 0"),
        ({"seconds": 0}, "time limit should be above 0 seconds, got 0"),
        ({"workers": 0}, "workers should be at least 1, got 0"),
        ({"shard": (3, 2)}, "shard 3/2 should be K/N with 1 <= K <= N"),
        ({"workers": 2}, "several workers need the name of a subject"),
    ],
)
def test_bad_arguments_are_refused_at_the_door(arguments, message):
    """With the value in the message."""
    with pytest.raises(UsageError, match=message):
        fuzz(models.Summing, **arguments)


FAILS_IN_WORKERS = """
import multiprocessing, os
from tests.subjects.models import Summing
class Fails(Summing):
    def cached(self, tokens, cache):
        if {condition} and multiprocessing.parent_process() is not None:
            {failure}
        return super().cached(tokens, cache)
"""


@pytest.mark.parametrize(
    ("condition", "failure", "error", "message"),
    [
        ("True", "os._exit(9)", Inconclusive, "a worker process died .* -n 1 --seed 5.* code 9"),
        ("tokens.shape[1] > 5", "os._exit(9)", Inconclusive, "a worker process died .* code 9"),
        (
            "tokens.shape[1] > 5",
            "return None",
            InvalidSubject,
            "should return .logits, cache.",
        ),
    ],
    ids=["dies when it starts", "dies", "breaks the protocol"],
)
def test_what_fails_in_a_worker_is_told_in_one_line(tmp_path, condition, failure, error, message):
    """A process that ends itself makes the hunt inconclusive; an error is the same as without
    processes."""
    source = FAILS_IN_WORKERS.format(condition=condition, failure=failure)
    (tmp_path / "failing.py").write_text(source)
    with pytest.raises(error, match=message):
        fuzz(f"{tmp_path}/failing.py:Fails", workers=2, examples=60, seed=5)


def test_the_public_api_is_there():
    """The three verbs that a test file needs."""
    verdict = kvfuzz.check(models.Summing(), kvfuzz.Case(((1, 2),), (1, 1)))
    assert verdict.status == "agreed"
    assert kvfuzz.fuzz(models.Summing, examples=3).verdict == "agreed"
    kvfuzz.assert_agrees(models.Summing(), examples=3)


def test_assert_agrees_fails_with_the_whole_message(tmp_path):
    """What was seen, where, and how to see it again."""
    with pytest.raises(AssertionError, match=r"DIVERGED at step 2 of 2 \(decode\)") as caught:
        assert_agrees(models.ForgetsOnDecode(), folder=tmp_path)
    assert f"replay: kvfuzz replay {tmp_path}" in str(caught.value)
    assert len(list(Path(tmp_path).glob("*.json"))) == 1


def test_assert_agrees_does_not_pass_on_nothing():
    """A hunt that compared nothing is no passing test."""
    with pytest.raises(Inconclusive, match="both paths gave NaN"):
        assert_agrees(raising.NanInBoth(), examples=5, folder=None)


@pytest.mark.parametrize("examples", [1, 49, 50, 199, 200, 201, 399, 400, 1000])
def test_rounds_hold_all_cases_and_each_case_its_round(examples):
    """Short rounds first, long ones after; none is empty, and the last holds what is left."""
    plan = Plan("", Options(), None, 0, examples, None)
    sizes = []
    while plan.round_size(len(sizes)):
        sizes.append(plan.round_size(len(sizes)))
    assert sum(sizes) == examples
    assert set(sizes[:-1]) <= {50, 200}
    rounds = [index for index, size in enumerate(sizes) for _ in range(size)]
    assert [plan.round_of(case) for case in range(examples)] == rounds


@pytest.mark.parametrize(
    ("examples", "climbed"),
    [
        pytest.param(200, 0, marks=pytest.mark.full(reason="as few as 250")),
        (250, 0),
        (400, 200),
    ],
)
def test_long_rounds_climb_the_excess(examples, climbed, monkeypatch):
    """Where there are examples enough for it: Hypothesis is told the excess of each verdict, but of
    those on long rows, which it does not draw."""
    told = []
    monkeypatch.setattr(hypothesis, "target", told.append)
    hunt = fuzz(models.Summing, examples=examples, seed=0)
    long = len(climbs(space_of(as_factory(models.Summing)), 4, climbed))
    assert len(told) == climbed - long
    assert all(0 <= value <= hunt.worst_excess for value in told)


def test_a_long_hunt_survives_that_its_cases_are_tried_again():
    """Climbing the excess, Hypothesis runs cases again, and must get the answer of the first
    time, whether the case was wanted or passed over."""
    hunt = fuzz("zoo:window", seed=3, examples=420, laws=())
    assert (hunt.verdict, hunt.read > 300) == ("agreed", True)


@pytest.mark.parametrize("status", ["agreed", "vacuous"])
def test_a_case_that_is_tried_again_gets_the_answer_of_the_first_time(status):
    """Passed over by the balance, drawn again as no evidence, or kept."""
    space = space_of(load("zoo"))
    run = DrawnRound(space, 60, lambda case: Verdict(status), Balance(space, 60), spare=1)
    answers = []
    for case in draw_cases(space, 0, 5) * 2:
        try:
            run.examine_or_reject(case)
            answers.append("kept")
        except UnsatisfiedAssumption:
            answers.append("passed over")
    assert answers[:5] == answers[5:]
    if status == "vacuous":
        assert set(answers) == {"kept", "passed over"}


def test_what_a_bug_does_not_need_is_taken_out():
    """Its program, its padding and its arguments; and no other kind of failure takes its place."""
    tokens = ((4, 5, 6, 7), (8, 9, 1, 2))
    case = Case(tokens, (Padded(2, "left", (0, 1)), Crop(1), 1, Fork(), 1), given=("mask",))
    assert smallest(case, lambda _: True).schedule == (1,)
    forked = smallest(case, lambda one: Fork() in one.schedule[:-1] and one.schedule[-1] == 1)
    assert (forked.schedule, forked.given) == ((1, Fork(), 1), ())
    assert smallest(case, lambda _: False) == case


def test_a_hunt_runs_on_one_torch_thread_and_restores_what_there_were():
    """In a test of a user's as well, where nothing else sets it."""
    seen = set()

    class Counts(models.Summing):
        def uncached(self, tokens):
            seen.add(torch.get_num_threads())
            return super().uncached(tokens)

    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        assert_agrees(Counts(), examples=5, seed=0)
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)
    assert seen == {1}
