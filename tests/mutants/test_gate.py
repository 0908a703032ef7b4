"""The gates: a list that may not get worse, and a percentage."""

from __future__ import annotations

import html
import json
from pathlib import Path
from typing import Any

import pytest

from kvfuzz.case.files import write_json
from kvfuzz.errors import UsageError
from mutants.campaign.gate import (
    Baseline,
    Changes,
    Gate,
    compare_with_baseline,
    exit_code,
    find_changes,
    read_baseline,
    read_gate,
)
from mutants.campaign.result import Score
from mutants.mutant import STATES
from tests.mutants.scores import made, no_score, result

FILE = Path("before.json")


def score_of(**states: str) -> Score:
    """A score of mutants `append.NAME`, with a state each."""
    return made([result(f"append.{name}", state) for name, state in states.items()])


def changed_since(before: dict[str, str], **now: str) -> Changes:
    states = {f"append.{name}": state for name, state in before.items()}
    return find_changes(Baseline(FILE, states), score_of(**now))


def told(gate: Gate, score: Score) -> list[str]:
    found = compare_with_baseline(gate, score)
    return list(found.lines) if found else []


@pytest.mark.parametrize("state", ["survived", "unreached", "timed_out"])
def test_what_was_killed_and_is_not_now_is_a_new_survivor(state) -> None:
    """However it was missed."""
    found = changed_since({"a": "killed", "b": "killed"}, a=state, b="killed")
    assert found == Changes(("append.a",), (), (), ())
    assert found.worse


@pytest.mark.parametrize("state", ["survived", "unreached", "timed_out"])
def test_what_was_not_there_and_is_not_killed_is_a_new_survivor(state) -> None:
    """A fault that nobody catches has come to the library."""
    assert changed_since({}, a=state) == Changes(("append.a",), (), (), ())


@pytest.mark.parametrize("before", sorted(set(STATES) - {"killed"}))
def test_what_was_not_killed_before_is_no_new_survivor(before) -> None:
    """It is known; the gate is for what is new."""
    assert not changed_since({"a": before}, a="survived").worse


@pytest.mark.parametrize(
    "state", sorted({"loud", "crashed", "invalid", "inapplicable"} & set(STATES))
)
def test_a_kill_that_is_lost_to_a_state_beside_the_score_is_worse(state) -> None:
    """The percentage would not show it: it is of the others alone."""
    found = changed_since({"a": "killed", "b": "killed"}, a=state, b="killed")
    assert found == Changes((), ("append.a",), (), ())
    assert found.worse
    assert not changed_since({}, a=state, b="killed").worse


def test_improvements_and_what_vanished_are_listed_and_do_not_fail() -> None:
    """A mutant declared equivalent since then is neither."""
    found = changed_since(
        {"a": "survived", "b": "loud", "c": "killed", "d": "killed"},
        a="killed", b="killed", c="equivalent",
    )  # fmt: skip
    assert found == Changes((), (), ("append.a", "append.b"), ("append.d",))
    assert not found.worse


BETTER, WORSE = {"append.a": "survived"}, {"append.a": "killed"}


@pytest.mark.parametrize(
    ("fail_under", "before", "code"),
    [
        (None, None, 1),
        (50.0, None, 0),
        (51.0, None, 1),
        (None, BETTER, 0),
        (None, WORSE, 1),
        (50.0, BETTER, 0),
        (51.0, BETTER, 1),
        (50.0, WORSE, 1),
        (51.0, WORSE, 1),
        (0.0, None, 0),
    ],
)
def test_a_gate_alone_decides_and_both_have_to_hold(fail_under, before, code) -> None:
    """The score is 50 %: one is killed, one survived."""
    baseline = None if before is None else Baseline(FILE, {**before, "append.b": "killed"})
    gate = Gate(fail_under, baseline)
    assert exit_code(gate, score_of(a="survived", b="killed")) == code


def test_all_killed_does_not_help_below_a_baseline() -> None:
    """The percentage is 100, and a kill is lost all the same."""
    gate = Gate(None, Baseline(FILE, {"append.a": "killed", "append.b": "killed"}))
    assert exit_code(gate, score_of(a="loud", b="killed")) == 1
    assert exit_code(Gate(), score_of(a="loud", b="killed")) == 0


@pytest.mark.parametrize("gate", [Gate(), Gate(0.0), Gate(None, Baseline(FILE, {}))])
def test_without_a_score_no_gate_passes_or_fails(gate) -> None:
    """It is inconclusive."""
    score = no_score("the unmutated zoo diverges")
    assert exit_code(gate, score) == 3
    assert told(gate, score) == []


def test_what_has_changed_is_told_by_id() -> None:
    """With the state now and then, and the file."""
    gate = Gate(None, Baseline(FILE, {"append.a": "killed", "append.c": "survived", "x.y": "loud"}))
    assert told(gate, score_of(a="timed_out", b="survived", c="killed")) == [
        "NEW SURVIVOR append.a: timed out, killed in before.json",
        "NEW SURVIVOR append.b: survived, absent in before.json",
        "killed now but not in before.json: append.c",
        "in before.json but not run now: x.y",
    ]
    lost = Gate(None, Baseline(FILE, {"append.a": "killed"}))
    assert told(lost, score_of(a="loud")) == []  # nothing else was decided: no score
    assert told(lost, score_of(a="loud", b="killed")) == [
        "KILL LOST append.a: loud, killed in before.json"
    ]
    assert told(lost, score_of(a="killed")) == ["no new survivor since before.json"]
    assert told(Gate(10.0), score_of(a="survived")) == []


def test_a_long_list_is_cut_with_its_number() -> None:
    """Of what vanished ten are named."""
    gate = Gate(None, Baseline(FILE, {f"x.y{number:02}": "killed" for number in range(15)}))
    (line, _) = told(gate, score_of(a="killed"))
    assert line.endswith("x.y08, x.y09 and 5 more")


def report(folder: Path, **changed: Any) -> Path:
    """A file as `--json` writes it, but for what is changed."""
    file = folder / "before.json"
    write_json(file, {**score_of(a="killed", b="survived").to_json(), **changed})
    return file


def test_a_baseline_is_read_from_a_report(tmp_path) -> None:
    """The states by id."""
    file = report(tmp_path)
    states = {"append.a": "killed", "append.b": "survived"}
    assert read_baseline(file, "zoo") == Baseline(file, states)
    assert read_gate(7.0, file, "zoo") == Gate(7.0, Baseline(file, states))
    assert read_gate(7.0, None, "zoo") == Gate(7.0)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "is not JSON"),
        ("{", "is not JSON"),
        ("[" * 100_000, "is not JSON"),
        ("\xff", "is not JSON"),
        ("[]", "is not a report of kvfuzz score"),
        ('{"kind": "kvfuzz counterexample"}', "is not a report of kvfuzz score"),
    ],
)
def test_a_file_that_is_no_report_is_refused(tmp_path, text, message) -> None:
    """In one line."""
    file = tmp_path / "before.json"
    file.write_text(text, encoding="latin-1")
    with pytest.raises(UsageError, match=message) as refused:
        read_baseline(file, "zoo")
    assert "\n" not in str(refused.value)
    assert str(file) in str(refused.value)


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"schema": 2}, "has schema 2; this kvfuzz reads 1"),
        ({"subject": "zoo:rope"}, "is about 'zoo:rope', not 'zoo'"),
        ({"score": None}, "has no score"),
        ({"mutants": None}, "is broken"),
        ({"mutants": [{"id": "append.a"}]}, "is broken"),
        ({"mutants": [{"id": 3, "state": "killed"}]}, "is broken"),
        ({"mutants": [{"id": "append.a", "state": "green"}]}, "is broken"),
        ({"mutants": ["append.a"]}, "is broken"),
    ],
)
def test_a_report_that_says_nothing_here_is_refused(tmp_path, changed, message) -> None:
    """Of another subject, without a score, or broken."""
    with pytest.raises(UsageError, match=message):
        read_baseline(report(tmp_path, **changed), "zoo")


COMMAND = ("score", "zoo", "--examples", "3", "--seed", "1", "--no-shrink")
SURVIVOR, KILLED = "crop.leaves_its_slots_in_sight", "append.prepends"


def test_the_command_gates_on_a_former_report(run, tmp_path) -> None:
    """The same result passes against itself, and fails once the survivor is new."""
    before, kept = tmp_path / "before.json", ("--folder", tmp_path)
    wanted = ("--mutant", SURVIVOR, "--mutant", KILLED)
    code, _, _ = run(*COMMAND, *wanted, "--json", before, *kept)
    assert code == 1
    code, out, _ = run(*COMMAND, *wanted, "--baseline", before, *kept)
    assert code == 0
    assert f"no new survivor since {before}" in out
    written = json.loads(before.read_text())
    for each in written["mutants"]:
        each["state"] = "killed"
    before.write_text(json.dumps(written))
    reports = {name: tmp_path / f"report.{name}" for name in ("md", "html")}
    code, out, _ = run(
        *(*COMMAND, *wanted, "--baseline", before, "--fail-under", 50, *kept, "--github"),
        *("--markdown", reports["md"], "--html", reports["html"]),
    )
    assert code == 1
    new = f"NEW SURVIVOR {SURVIVOR}: survived, killed in {before}"
    assert f"{new}\n" in out
    assert f"::error title=worse than the baseline::{new}\n" in out
    # People who look at a report are told as well.
    for report in reports.values():
        text = html.unescape(report.read_text())
        assert text.index(new) < text.index(
            "What the states mean" if "<html" in text else "| mutant"
        )


def test_a_baseline_that_cannot_be_used_is_refused_before_the_work(run, tmp_path) -> None:
    """In one line, with exit code 2."""
    code, out, error = run(*COMMAND, "--baseline", tmp_path / "none.json", "--folder", tmp_path)
    assert (code, out) == (2, "")
    assert error == (
        f"kvfuzz: cannot read --baseline {tmp_path / 'none.json'}: No such file or directory\n"
    )


def test_a_baseline_is_never_written_over(run, tmp_path) -> None:
    """The next run would be held to the failure of this one, and pass."""
    before = report(tmp_path)
    text = before.read_text()
    code, out, error = run(*COMMAND, "--baseline", before, "--json", before, "--folder", tmp_path)
    assert (code, out) == (2, "")
    assert f"--baseline {before} would be overwritten" in error
    assert before.read_text() == text
