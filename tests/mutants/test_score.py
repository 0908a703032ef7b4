"""The score can be trusted: what kills, what does not, and what forbids a score."""

import math
import time
from dataclasses import replace

import pytest
import torch

from kvfuzz.case.case import Case
from kvfuzz.errors import UsageError
from kvfuzz.search.rounds import draw_cases
from kvfuzz.subjects.loading import Options
from mutants.campaign.campaign import Limits
from mutants.campaign.cases import prepare_cases
from mutants.campaign.prepared_cases import PreparedCases, check_baseline
from mutants.campaign.result import Result, conclude, count_states, percent_killed
from mutants.campaign.run import run_mutant
from mutants.campaign.score import control_failure, score
from mutants.library import registry
from mutants.library.registry import find, library
from mutants.mutant import STATES, Mutant, steps

TARGET = ("kvfuzz.subjects.zoo.cached:store",)


def made(fault, targets=TARGET, **changes):
    """A mutant of the tests' own."""
    values = {
        "operator": "test",
        "name": fault.__name__,
        "description": "A fault of the tests.",
        "targets": targets,
        "fault": fault,
        "site": None,
        "witness": steps(1),
    }
    return Mutant(**{**values, **changes})


def drops(real):
    return lambda cache, layer, key, value: real(cache, layer, key[:, :, :-1], value[:, :, :-1])


def nothing(real):
    return lambda *args: real(*args)


def raises(real):
    def store(*_):
        raise RuntimeError("loud")

    return store


def raises_on_chunks_and_drops(real):
    def store(cache, layer, key, value):
        if key.shape[2] > 1:
            raise RuntimeError("loud")
        real(cache, layer, key[:, :, :-1], value[:, :, :-1])

    return store


def wrong_shape(real):
    return lambda weights, x: real(weights, x)[:, :, :-1]


def hangs(real):
    def store(*_):
        while True:
            time.sleep(0.01)

    return store


def half(real):
    return lambda cache, layer, key, value: real(cache, layer, key, value.half().to(value.dtype))


@pytest.fixture(scope="module")
def prepared():
    """Twenty cases of the zoo."""
    return prepare_cases("zoo", Options(), 20, 3, shrink=False)


@pytest.mark.parametrize(
    ("mutant", "state", "reason"),
    [
        (made(drops), "killed", None),
        (made(half), "killed", None),
        (made(nothing), "survived", None),
        (made(nothing, equivalent="it is"), "invalid", "and never checked: run python -m"),
        (find("scale.keys_are_halved_and_queries_doubled"), "equivalent", "a score is the"),
        (made(drops, equivalent="wrongly"), "invalid", "declared equivalent, but case"),
        (
            made(drops, ("kvfuzz.localize.paths:compare_paths",)),
            "unreached",
            "no case ran the code",
        ),
        (made(raises), "loud", "the cached path raised RuntimeError: loud"),
        (
            made(wrong_shape, ("kvfuzz.subjects.zoo.cached:readout",)),
            "loud",
            "returned logits of shape",
        ),
        (made(drops, ("kvfuzz.subjects.zoo.cached:gone",)), "invalid", "there is no target"),
    ],
    ids=lambda value: value.fault.__name__ if isinstance(value, Mutant) else None,
)
def test_the_state_of_a_mutant(prepared, mutant, state, reason):
    """Only a difference of logits kills; everything else is its own state, with the reason."""
    result = run_mutant(prepared, mutant)
    assert result.state == state
    assert (reason or "") in (result.reason or "")
    assert (result.killed_by is not None) == (state in ("killed",) or "declared" in (reason or ""))


def test_a_mutant_that_does_not_come_back_is_timed_out(prepared):
    """Which is no kill."""
    soon = replace(prepared, campaign=replace(prepared.campaign, limits=Limits(seconds=1.0)))
    result = run_mutant(soon, made(hangs))
    assert (result.state, result.reason) == ("timed_out", "over 1 s")
    assert result.killed_by is None


def test_a_mutant_that_raises_on_some_cases_is_killed_by_another(prepared):
    """The cases on which it raised are count_states, and kill nothing."""
    result = run_mutant(prepared, made(raises_on_chunks_and_drops))
    assert result.state == "killed"
    everything = replace(prepared, campaign=replace(prepared.campaign, matrix=True))
    result = run_mutant(everything, made(raises_on_chunks_and_drops))
    assert result.state == "killed"
    assert result.ran == 20
    assert result.raised + len(result.kills) <= 20
    assert result.raised > 0


def test_a_mutant_stops_at_its_first_kill_and_the_matrix_runs_all(prepared):
    """What kills in the one kills in the other."""
    first = run_mutant(prepared, find("position.restarts_at_each_chunk"))
    assert len(first.kills) == 1
    assert first.ran <= 20
    everything = replace(prepared, campaign=replace(prepared.campaign, matrix=True))
    whole = run_mutant(everything, find("position.restarts_at_each_chunk"))
    assert whole.ran == 20
    assert first.killed_by in whole.kills
    assert whole.kills == tuple(sorted(whole.kills))


def test_the_score_is_killed_by_decided():
    """100 x killed / (killed + survived + unreached + timed out), whatever else there is."""
    states = ["killed"] * 3 + [
        "survived",
        "unreached",
        "timed_out",
        "loud",
        "invalid",
        "equivalent",
    ]
    counts = count_states([Result(str(i), "test", state) for i, state in enumerate(states)])
    assert percent_killed(counts) == 50.0
    assert set(counts) == set(STATES)


@pytest.mark.parametrize("state", ["loud", "invalid", "equivalent"])
def test_a_score_of_nothing_is_no_score(state):
    """0 of 0 is not 100 %."""
    assert percent_killed(count_states([Result("a", "test", state)])) is None
    assert percent_killed(count_states([])) is None


def test_a_baseline_that_diverges_forbids_a_score(monkeypatch):
    """A checker that cries wolf on the clean decoder proves nothing."""
    from kvfuzz.subjects.zoo import cached

    real = cached.store
    monkeypatch.setattr(cached, "store", drops(real))
    result = score("zoo", examples=5, seed=0, mutants=("norm.skips_before_attention",))
    assert (result.verdict, result.percent, result.results) == ("inconclusive", None, ())
    assert "the unmutated zoo diverges on case" in result.reason


def test_a_placebo_that_is_killed_forbids_a_score(monkeypatch):
    """Whatever made it differ would flatter the score."""
    wolf = made(drops, placebo=True, operator="placebo")
    monkeypatch.setattr(registry, "library", lambda: {**library(), wolf.id: wolf})
    result = score("zoo", examples=5, seed=0, mutants=("norm.skips_before_attention",))
    assert (result.verdict, result.percent) == ("inconclusive", None)
    assert result.reason == "the placebo placebo.drops changes nothing, but is killed"
    assert control_failure([Result("p", "placebo", "unreached")], []) is not None
    assert control_failure([Result("p", "placebo", "survived")], []) is None


def test_the_clean_decoder_is_a_baseline(prepared):
    """On which every case agrees."""
    assert check_baseline(prepared) is None


def test_the_cases_are_those_of_the_fuzzer(prepared):
    """A clean hunt under the seed examines the same, in the same order."""
    plan = prepared.campaign.plan
    assert list(prepared.campaign.cases) == draw_cases(plan.space, 3, 20)


def test_one_process_and_two_others_give_the_same_table():
    """Same seed, same table: states, kills, witnesses."""
    ids = ("append.prepends", "layer.reads_the_layer_below_on_decode", "norm.skips_for_keys")
    one, two = (score("zoo", mutants=ids, seed=4, examples=60, workers=n) for n in (0, 2))

    def table(result):
        return [replace(r, seconds=0) for r in result.results]

    assert table(one) == table(two)
    assert one.percent == 100


def test_the_witness_is_the_case_that_killed_cut_after_the_divergence():
    """Its row, up to the call that diverges first."""
    asked = {"mutants": ("append.later_chunk_replaces_all",), "seed": 6, "examples": 60}
    found = score("zoo", **asked)
    (result,) = found.results
    case, first = Case.from_json(result.witness["case"]), result.witness["verdict"]["first"]
    killing = found.cases[result.killed_by]
    assert (case.batch, first["step"]) == (1, len(case.schedule) - 1)
    assert case.batch * case.length < killing.batch * killing.length
    assert case.tokens[0] in {row[: case.length] for row in killing.tokens}
    assert (case.seed, case.dtype) == (killing.seed, killing.dtype)
    shrunk = score("zoo", **asked, shrink=True).results[0]
    states = [
        (r.state, r.killed_by, r.kills, r.calls, r.reached, r.excess) for r in (result, shrunk)
    ]
    assert states[0] == states[1]


def test_the_witness_is_shrunk_on_request_and_names_the_subject_that_replays_it():
    """From whatever case killed it to the smallest that does."""
    asked = {"mutants": ("append.later_chunk_replaces_all",), "seed": 4, "examples": 60}
    result = score("zoo", **asked, shrink=True).results[0]
    case = result.witness["case"]
    assert result.witness["subject"] == "mutant:append.later_chunk_replaces_all"
    assert (case["tokens"], case["schedule"]) == ([[0, 0, 0]], [1, 2])
    assert result.site == result.declared_site == "0.cache"
    assert max(cell["excess"] for cell in result.map) == math.inf  # entries that are missing


def test_time_that_is_over_times_the_rest_out():
    """What has not begun is not counted as anything better; if nothing has, there is no score."""
    late = score("zoo", seed=1, examples=20, seconds=1e-6)
    assert {r.state for r in late.results} == {"timed_out"}
    assert (late.percent, late.verdict) == (None, "inconclusive")
    killed = Result("norm.skips_before_attention", "norm", "killed", killed_by=0, ran=1)
    told = conclude([killed, *late.results], None)
    assert told["percent"] == 100 / (1 + len(late.results))
    assert told["verdict"] == "survived"
    # One that has begun and hangs is missed: that is a score.
    hangs = Result("norm.hangs", "norm", "timed_out", reason="over 2 s, in one call on case 0")
    assert conclude([hangs], None)["percent"] == 0


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"examples": 0}, "examples should be at least 1"),
        ({"workers": -1}, "workers should be at least 0"),
        ({"seconds": -1}, "time limit should be above 0"),
    ],
)
def test_bad_arguments_are_refused(arguments, message):
    """With the value in the message."""
    with pytest.raises(UsageError, match=message):
        score("zoo", **arguments)


def test_a_bench_builds_each_case_once():
    """Uncached logits are shared by all mutants."""
    prepared = prepare_cases("zoo", Options(), 2, 0)
    assert isinstance(prepared, PreparedCases)
    assert prepared.reference(1) is prepared.reference(1)
    assert isinstance(prepared.reference(1).expected.logits, torch.Tensor)
