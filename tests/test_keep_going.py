"""A hunt that keeps going finds one counterexample for each cause, whatever hides it."""

import json
from collections import Counter
from dataclasses import replace

import pytest

from kvfuzz.case.case import Case
from kvfuzz.case.schedule import Crop, Fork, Switch
from kvfuzz.case.verdict import Verdict
from kvfuzz.report.text import hunt_text
from kvfuzz.search import tally as tallies
from kvfuzz.search.causes import RAISES, Cause, find_cause
from kvfuzz.search.detours import past_what_raises
from kvfuzz.search.hunt import fuzz
from kvfuzz.search.known_divergences import Expectation
from kvfuzz.search.replay import replay
from kvfuzz.search.rounds import Plan, run_round, run_rounds
from kvfuzz.search.strategies import space_of
from kvfuzz.search.tally import Failure, Tally
from kvfuzz.subjects.loading import Options, load
from tests.subjects import several_bugs

NAME = "tests.subjects.several_bugs:"
EXAMPLES = 24


def keep_going(bugs, **settings):
    return fuzz(NAME + bugs, seed=0, examples=EXAMPLES, keep_going=True, **settings)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("found")


@pytest.fixture(scope="module")
def announced():
    return []


@pytest.fixture(scope="module")
def three(folder, announced):
    """The hunt on the decoder with three bugs."""
    return keep_going("Three", folder=folder, announce=announced.append)


def test_three_bugs_that_hide_each_other_give_three_findings(three):
    """One in a call of chunks, which raises, one in a crop, and one after eight tokens."""
    assert three.verdict == "diverged"
    place, crop = three.silent
    (chunk,) = three.raising
    assert place.explanation.location.first.source.text == "positions = positions - 1"
    assert crop.failure.case.schedule == (1, Crop(1), 1)
    assert "crop" in crop.explanation.location.advice
    assert chunk.failure.case.schedule == (1, 2)
    assert "ValueError: it takes one token at a time" in chunk.failure.verdict.error
    assert three.findings == (place, crop, chunk)
    assert three.failure == place.failure


def test_a_finding_shrinks_to_its_own_cause(three):
    """The case with wrong positions needs nine tokens; one with a wrong crop would be smaller."""
    place = three.silent[0].failure
    assert (place.case.length, place.done) == (9, True)
    assert all(step.feeds for step in place.case.steps())


def test_each_finding_has_a_file_that_replays(three, folder, announced):
    """And no other file is left; each was announced as it was drawn, under its own number."""
    assert {one.path for one in three.findings} == {*folder.glob("*.json")}
    for one in three.findings:
        assert replay(one.path).verdict == one.failure.verdict
    assert {first.cases for first in announced} == {one.number for one in three.findings}
    assert {first.verdict for first in announced} == {"diverged"}


def test_the_cases_of_a_cause_are_counted_and_others_drawn_in_their_place(three):
    """So the hunt shows what agrees as well: it has as many cases as it was asked for."""
    assert [one.cases > 1 for one in three.findings] == [True, True, True]
    assert three.cases - sum(one.cases for one in three.findings) >= EXAMPLES // 2
    assert three.exercised["decode"] > 0
    assert three.cases > EXAMPLES


def test_the_report_tells_what_raises_from_what_is_silent(three):
    """With the count of each, and the command to replay it."""
    text = hunt_text(three)
    assert text.startswith(f"DIVERGED {NAME}Three: 3 causes (2 silent, 1 raises)\nSILENT 1 of 2: ")
    assert text.count("\nSILENT ") == 2
    assert text.index("\nSILENT 2 of 2: ") < text.index("\nRAISES 1 of 1: ")
    for one in three.findings:
        assert f" of {2 - one.raises}: {one.cases} cases, the first is case {one.number}" in text
        assert f"replay: kvfuzz replay {one.path}" in text
    assert "\n  exercised: " in text


def test_json_has_both_groups(three):
    """Each with its count; the keys of one counterexample are those of the first."""
    data = json.loads(json.dumps(three.to_json()))
    assert data["keep_going"] is True
    assert [one["cases"] for one in data["silent"]] == [one.cases for one in three.silent]
    (raises,) = data["raises"]
    assert raises["counterexample"] == str(three.raising[0].path)
    assert raises["places"] == ["ValueError at tests/subjects/several_bugs.py:35"]
    assert data["counterexample"] == str(three.path)


def test_one_bug_in_many_cases_is_one_finding():
    """Half of the cases show it."""
    hunt = keep_going("Place")
    (one,) = hunt.findings
    assert one.cases > EXAMPLES // 2
    assert one.cause.places == ("tests/subjects/several_bugs.py:38",)


def test_a_right_decoder_agrees():
    """And its cases are those of a hunt that does not keep going."""
    one, two = (
        fuzz(several_bugs.Right, seed=0, examples=6, keep_going=going) for going in (True, False)
    )
    assert (one.verdict, one.findings, one.cases) == ("agreed", (), two.cases)


def test_without_it_a_hunt_ends_at_the_first_divergence():
    """Its report has no count of cases."""
    hunt = fuzz(several_bugs.Chunk, seed=0, examples=EXAMPLES, locate=False)
    assert (len(hunt.findings), hunt.cases) == (1, hunt.findings[0].number)
    assert "RAISES" not in hunt_text(hunt)


def test_an_expected_divergence_is_no_finding():
    """It is counted as expected, and the others are found."""
    known = Expectation("*Chunk", "no chunks, by design", elements=("extend",))
    hunt = keep_going("Chunk", expected=[known])
    assert (hunt.verdict, hunt.findings) == ("agreed", ())
    assert hunt.expected[0] > 0
    stale = Expectation("*Chunk", "a reason", elements=("fork",))
    assert "did not show" in keep_going("Chunk", expected=[stale]).warnings[0]


def test_without_locating_causes_are_told_by_what_is_known():
    """A law and a kind of step; for an exception, its line."""
    hunt = keep_going("Three", locate=False)
    assert {one.cause.places for one in hunt.silent} <= {("decode",), ("prefill",)}
    assert hunt.raising[0].cause.places == ("ValueError at tests/subjects/several_bugs.py:35",)


def test_rounds_add_up_to_the_same_in_any_process():
    """As workers send them: findings are joined over rounds, with their cases."""
    factory = load(NAME + "Chunk")
    plan = Plan(factory.name, Options(), space_of(factory), 0, 60, None, keep_going=True)
    total = Tally()
    for index in plan.rounds():
        sent = json.loads(json.dumps(run_round(factory, plan, index).to_json()))
        total += Tally.from_json(sent)
    assert total == run_rounds(factory, plan, None)
    assert len(total.failures) == 1
    assert total.failures[0].cases > total.failures[0].number > 0


@pytest.mark.full(reason="the same promise with processes; quick sends rounds as they do")
def test_two_workers_find_what_one_finds():
    """Causes, counts and shrunk cases."""
    one, two = (keep_going("Three", workers=workers) for workers in (1, 2))
    assert [replace(f, explanation=None, counterexample=None) for f in one.findings] == [
        replace(f, explanation=None, counterexample=None) for f in two.findings
    ]


def test_a_time_limit_ends_it():
    """And what was found by then is shrunk."""
    hunt = fuzz(several_bugs.Chunk, seed=1, seconds=0.5, keep_going=True, locate=False)
    assert hunt.verdict in ("agreed", "diverged")
    assert hunt.seconds < 60


def test_a_shard_keeps_going_too():
    """Under a seed of its own."""
    hunt = keep_going("Chunk", shard=(1, 2), locate=False)
    assert hunt.shard == "1/2 of seed 0"
    assert [one.raises for one in hunt.findings] == [True]


def test_causes_beyond_a_bound_are_counted(monkeypatch):
    """They have no finding, and the report says so."""
    monkeypatch.setattr(tallies, "MOST_CAUSES", 1)
    hunt = keep_going("Three", locate=False)
    assert len(hunt.findings) == 1
    assert hunt.further > 0
    assert f"{hunt.further} cases of further causes" in hunt_text(hunt)
    assert hunt.to_json()["further"] == hunt.further


def failure(number, *places, law="agreement"):
    case = Case(((0, 0),), (1, 1))
    return Failure(case, Verdict("diverged", law=law), number, cause=Cause(law, "differs", places))


def test_a_case_that_is_like_two_causes_joins_them():
    """The first of them stays, with the cases of all."""
    tally = Tally()
    for one in (failure(1, "a.py:1"), failure(2, "crop"), failure(3, "b.py:2")):
        tally.note(one)
    tally.note(failure(4, "a.py:1", "crop"))
    assert [(one.number, one.cases) for one in tally.failures] == [(1, 3), (3, 1)]
    assert tally.failures[0].cause.places == ("a.py:1", "crop")


def test_causes_of_two_laws_are_two():
    """At one line, too."""
    tally = Tally()
    tally.note(failure(1, "a.py:1"))
    tally.note(failure(2, "a.py:1", law="isolation"))
    assert len(tally.failures) == 2


def test_a_law_that_is_broken_in_several_steps_has_one_cause():
    """Numbers and kinds of step in its finding do not count."""
    case = Case(((0, 0),), (1, 1))
    factory = load(NAME + "Right")
    words = ("frame: step 3 (decode): layer 0 changed", "frame: step 12 (extend): layer 4 changed")
    one, two = (
        find_cause(factory, case, Verdict("diverged", law="frame", finding=each), False)
        for each in words
    )
    assert one == two
    other = Verdict("diverged", law="frame", finding="frame: step 3 (crop): layer 0 holds [3]")
    assert not one.is_like(find_cause(factory, case, other, False))


@pytest.mark.parametrize(
    ("schedule", "step", "past"),
    [
        ((2, 3, 1), 1, (2, 1, 1, 1, 1)),
        ((3, Crop(1), 2), 1, (3, 2)),
        ((2, Fork(), 2, Switch(0), 1), 1, (2, 2, Switch(0), 1)),
        ((2, 1, 2), 1, (2,)),
    ],
)
def test_a_case_is_led_past_the_step_that_raises(schedule, step, past):
    """By single tokens, without the operation, or up to there."""
    columns = sum(entry for entry in schedule if isinstance(entry, int))
    case = Case((tuple(range(columns)),), schedule)
    assert past_what_raises(case, Verdict("diverged", error_step=step)).schedule == past


def test_nothing_is_left_before_a_first_call_that_raises():
    """Of one token."""
    case = Case(((0, 0),), (1, 1))
    assert past_what_raises(case, Verdict("diverged", error_step=0)) is None
    assert past_what_raises(case, Verdict("diverged", error="the uncached path raised")) is None


class CropsPastTheEnd(several_bugs.Right):
    """A row is longer without the crop that raises, longer than the decoder takes."""

    max_length = 4

    def crop(self, cache, count):
        raise ValueError("no crop")


def test_a_detour_that_does_not_fit_is_not_taken():
    """The hunt goes on all the same."""
    hunt = fuzz(CropsPastTheEnd, seed=0, examples=30, keep_going=True, locate=False)
    (one,) = hunt.findings
    assert (one.cause.kind, one.cause.law) == (RAISES, "agreement")


def test_on_the_command_line_and_in_the_settings(run, tmp_path, monkeypatch):
    """`--keep-going`, or `keep-going = true`; the exit code is 1."""
    monkeypatch.chdir(tmp_path)
    given = (
        "fuzz",
        f"{NAME}Chunk",
        "--seed",
        0,
        "--examples",
        6,
        "--no-locate",
        "--json",
        "x.json",
    )
    code, out, _ = run(*given, "--keep-going")
    assert (code, out.splitlines()[0]) == (1, f"DIVERGED {NAME}Chunk: 1 cause (1 raises)")
    (tmp_path / "pyproject.toml").write_text("[tool.kvfuzz.fuzz]\nkeep-going = true\n")
    assert run(*given)[1].splitlines()[0] == out.splitlines()[0]
    assert len(json.loads((tmp_path / "x.json").read_text())["raises"]) == 1
    assert "RAISES" not in run(*given, "--no-keep-going")[1]
    assert Counter(path.suffix for path in (tmp_path / ".kvfuzz").iterdir())[".json"] == 1
