"""A campaign as a value: its limits, its identity, its controls."""

import json
from itertools import pairwise

import pytest

from kvfuzz.case.case import Case
from kvfuzz.cli.main import main
from kvfuzz.search.known_divergences import Expectation
from kvfuzz.subjects.calibration import Calibration, Lane
from kvfuzz.subjects.loading import Options
from mutants.campaign import prepared_cases
from mutants.campaign.campaign import Limits, identity_of, read_campaign
from mutants.campaign.cases import prepare_cases
from mutants.campaign.result import MutantOutcome, Result
from mutants.campaign.score import control_failure, interleave_controls, score
from mutants.library.registry import select
from tests.mutants.campaigns import SEVERAL


def test_a_budget_of_forward_calls_times_a_mutant_out():
    """The same on every machine. A mutant that needs more is neither killed nor survived."""

    def states(calls):
        found = score(
            "zoo", mutants=("crop.drops_one_too_many",), seed=0, examples=50, shrink=False,
            limits=Limits(calls=calls),
        )  # fmt: skip
        return found.results[0]

    enough = states(10_000)
    assert enough.state == "killed"
    starved = score(
        "zoo", mutants=("reuse.reset_leaves_the_blocks",), seed=0, examples=50, shrink=False,
        limits=Limits(calls=20),
    ).results[0]  # fmt: skip
    assert (starved.state, starved.reason) == ("timed_out", "no kill in 20 forward calls")
    assert 20 <= starved.calls < 60


def test_shrinking_stops_at_its_calls_with_the_smallest_case_yet():
    """Without calls the witness is the case as drawn, cut at most; with many it is the smallest."""

    def witness(calls):
        ids, limits = ("append.later_chunk_replaces_all",), Limits(calls=calls)
        found = score("zoo", mutants=ids, seed=4, examples=50, limits=limits, shrink=True)
        assert found.results[0].witness["verdict"]["status"] == "diverged"
        return Case.from_json(found.results[0].witness["case"]), found

    drawn, found = witness(1)
    killing = found.cases[found.results[0].killed_by]
    assert drawn.schedule == killing.schedule[: len(drawn.schedule)]
    assert {row[: drawn.length] for row in killing.tokens} >= {*drawn.tokens}
    shrunk, _ = witness(10_000)
    assert (shrunk.tokens, shrunk.schedule) == (((0, 0, 0),), (1, 2))


def test_a_campaign_survives_a_round_trip_through_json():
    """A process reads what was sent: the same cases, options and limits."""
    campaign = prepare_cases("zoo:rope", Options(dtype="float64"), 5, 7, matrix=True).campaign
    factory, other = read_campaign(json.loads(json.dumps(campaign.to_json())))
    assert factory.name == "zoo:rope"
    assert other == campaign
    assert identity_of(other, []) == identity_of(campaign, [])
    result = Result("a", "b", "killed", kills=(1, 2), laws=("agreement",) * 2, map=({"a": 1.0},))
    assert MutantOutcome.from_json(
        json.loads(json.dumps(MutantOutcome(result, "x").to_json()))
    ) == MutantOutcome(result, "x")


def test_a_calibration_is_part_of_a_campaign_and_not_where_it_is_kept():
    """Shards may keep it in different folders; another calibration gives another table."""

    def identity(path, leeway=2.0):
        lane = Lane("float32", 1, 1, 0, 1.5, {}, leeway)
        calibration = Calibration("zoo", 0, 1, {}, (lane,), path=path)
        options = Options(calibration=calibration)
        return identity_of(prepare_cases("zoo", options, 1, 0).campaign, [])

    assert identity("here.json") == identity("there/it/is.json")
    assert identity("here.json") != identity("here.json", leeway=3.0)


def test_known_divergences_are_no_cases_of_a_campaign():
    """Those of the built-in decoder are left out as well; the others stay as they were."""
    whole = prepare_cases("zoo", Options(), 30, 1).campaign.cases
    heads = whole[0].config["heads"]
    known = Expectation("zoo", "on purpose", config={"heads": heads})
    others = prepare_cases("zoo", Options(), 30, 1, [known]).campaign.cases
    assert others == tuple(case for case in whole if case.config["heads"] != heads)
    assert 0 < len(others) < len(whole)


def test_controls_are_spread_among_the_mutants():
    """In every shard, and a control runs first."""
    scored, controls = select("zoo")
    for shard in (scored, scored[::7], scored[:1]):
        order = interleave_controls(shard, controls)
        places = [place for place, mutant in enumerate(order) if mutant.is_control]
        assert places[0] == 0
        assert sorted(m.id for m in order) == sorted(m.id for m in (*shard, *controls))
        gaps = [later - place for place, later in pairwise(places)]
        assert max(gaps) - min(gaps) <= 1


def test_a_canary_that_lives_forbids_a_score(monkeypatch):
    """A checker that misses a change of every logit proves nothing."""
    from mutants.campaign import judge

    blind = Result("canary.rolls_the_vocabulary", "canary", "survived")
    real = judge.run_mutant
    monkeypatch.setattr(
        judge,
        "run_mutant",
        lambda cases, m, *rest: blind if m.canary else real(cases, m, *rest),
    )
    found = score("zoo", mutants=SEVERAL[:1], seed=1, examples=5, shrink=False)
    assert (found.verdict, found.percent) == ("inconclusive", None)
    assert found.reason == (
        "the canary canary.rolls_the_vocabulary must be killed, but is survived"
    )
    assert control_failure([], [Result("c", "canary", "killed")]) is None


@pytest.mark.parametrize(
    "option", [("--mutant-time", "nan"), ("--mutant-time", "inf"), ("--fail-under", "nan")]
)
def test_a_limit_that_is_no_number_is_refused(option, capsys):
    """Every comparison with nan is false, so that a gate would always hold."""
    assert main(["score", "zoo", *option]) == 2
    said = capsys.readouterr().err.strip().splitlines()
    assert f"'{option[1]}' is not a finite number" in said[-1]


def test_a_clean_subject_that_is_too_slow_means_no_score(monkeypatch):
    """It has more time than a mutant, but a limit."""
    monkeypatch.setattr(prepared_cases, "SECONDS_FOR_CLEAN", 0.2)
    name = "tests.mutants.campaigns:Sleeps"
    made = prepare_cases(name, Options(), 3, 1, limits=Limits(seconds=0.1))
    assert (
        prepared_cases.check_baseline(made) == f"the unmutated {name} takes over 0.2 s for case 0"
    )
