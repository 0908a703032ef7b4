"""The JUnit report, as another library reads it."""

from __future__ import annotations

from pathlib import Path

import junitparser
import pytest

from mutants.campaign.result import Score
from mutants.library.registry import find
from mutants.mutant import STATES
from mutants.report.junit import ELEMENTS, render
from mutants.report.report import Report
from tests.mutants.scores import all_survived, made, no_score, one_of_each_state, result


def read(score: Score, folder: Path) -> junitparser.TestSuite:
    """The one suite of the report."""
    file = folder / "junit.xml"
    file.write_text(render(Report(score)), encoding="utf-8")
    (suite,) = junitparser.JUnitXml.fromfile(str(file))
    return suite


def kind(case: junitparser.TestCase) -> str:
    """What a reader takes a test case for."""
    if case.is_skipped:
        return "skipped"
    return "error" if case.is_error else "failure" if case.is_failure else "passed"


def test_each_mutant_is_a_test_case(tmp_path) -> None:
    """Killed passes; survived, unreached and timed out fail; loud, crashed and invalid are errors;
    equivalent is skipped. Each that does not pass has its reason."""
    score = one_of_each_state()
    suite = read(score, tmp_path)
    expected = {
        "killed": "passed",
        "survived": "failure",
        "unreached": "failure",
        "timed_out": "failure",
        "loud": "error",
        "crashed": "error",
        "invalid": "error",
        "equivalent": "skipped",
        "inapplicable": "skipped",
    }
    cases = {case.name: case for case in suite}
    assert {each.state: kind(cases[each.id]) for each in score.results} == {
        state: expected[state] for state in STATES
    }
    for each in score.results:
        if each.state != "killed":
            (told,) = cases[each.id].result
            assert f"because of {each.state}" in told.message


def test_the_totals_are_those_of_the_cases(tmp_path) -> None:
    """Readers trust the attributes: they are what junitparser itself counts."""
    suite = read(one_of_each_state(), tmp_path)
    written = (suite.tests, suite.failures, suite.errors, suite.skipped)
    suite.update_statistics()
    assert written == (suite.tests, suite.failures, suite.errors, suite.skipped)
    assert written[:2] == (len(STATES), 3)


def test_a_survivor_says_what_would_kill_it_and_where_it_stands(tmp_path) -> None:
    """The declared witness, the command, and the file of the fault."""
    (case,) = read(made([result("append.prepends", "survived")]), tmp_path)
    (told,) = case.result
    assert "to kill it: a case like its witness: prefill" in told.text
    assert "to fuzz it: kvfuzz fuzz mutant:append.prepends --seed 7" in told.text
    attributes = case._elem.attrib
    assert attributes["file"] == "mutants/library/faults/append.py"
    line = Path(attributes["file"]).read_text().splitlines()[int(attributes["line"]) - 1]
    assert line.startswith("@mutant(")


def test_a_survivor_that_fits_any_subject_says_what_to_draw(tmp_path) -> None:
    """It has no witness; what it says itself is not hidden behind that."""
    reason = find("tokens.rows_crossed").advice
    survivor = result("tokens.rows_crossed", "survived", reason=reason)
    (case,) = read(made([survivor], subject="my.own:Model"), tmp_path)
    told = case.result[0].text
    assert "to kill it: draw two rows or more\n" in told
    assert "to fuzz it: kvfuzz fuzz mutant:tokens.rows_crossed@my.own:Model --seed 7" in told


def test_the_hunt_for_a_survivor_has_the_settings_of_the_score(tmp_path) -> None:
    """With others it would hunt in another subject."""
    command = "kvfuzz score my.own:Model --config 'my own.json' --dtype float64 --no-shrink"
    survivor = result("tokens.rows_crossed", "survived")
    score = made([survivor], subject="my.own:Model", command=command)
    (case,) = read(score, tmp_path)
    told = case.result[0].text
    settings = "--config 'my own.json' --dtype float64 --seed 7"
    assert f"kvfuzz fuzz mutant:tokens.rows_crossed@my.own:Model {settings}" in told


def test_a_run_without_a_score_is_no_pass(tmp_path) -> None:
    """An empty suite would be green: the reason stands in it as an error."""
    suite = read(no_score("the unmutated zoo diverges on case 3"), tmp_path)
    (case,) = suite
    assert (kind(case), suite.errors) == ("error", 1)
    assert case.result[0].message == "the unmutated zoo diverges on case 3"


@pytest.mark.parametrize("text", ["<b>&amp;", 'a "quote"', "\x00\x1b[31mred\x1b[0m", "\ud800"])
def test_whatever_a_model_says_is_well_formed(tmp_path, text) -> None:
    """Markup is text, and what XML cannot hold is replaced."""
    case, _ = read(made([result("append.prepends", "loud", reason=text)]), tmp_path)
    message = case.result[0].message
    legal = text.isprintable() and text.isascii()
    assert message == f"loud: {text}" if legal else "\N{REPLACEMENT CHARACTER}" in message


def test_every_state_but_killed_has_an_element() -> None:
    """A new state does not pass by being unknown."""
    assert {*STATES, "crashed", "inapplicable"} - {"killed"} == set(ELEMENTS)


def test_the_command_writes_it(run, tmp_path) -> None:
    """With the run's identity."""
    file = tmp_path / "junit.xml"
    code, _, _ = run(
        "score", "zoo", "--mutant", "append.prepends", "--examples", 3, "--seed", 1,
        "--no-shrink", "--junit", file, "--folder", tmp_path,
    )  # fmt: skip
    (suite,) = junitparser.JUnitXml.fromfile(str(file))
    properties = {each.name: each.value for each in suite.properties()}
    assert (code, suite.tests, suite.failures) == (0, 1, 0)
    assert properties["seed"] == "1"
    assert properties["workers"] == "1"
    assert properties["command"].endswith("--seed 1")


def test_many_mutants_are_many_cases(tmp_path) -> None:
    """None is lost."""
    assert len(list(read(all_survived(100), tmp_path))) == 100
