"""What a mutant declares of the cases that kill it is held against a matrix of kills."""

import json
from dataclasses import replace

from rich.console import Console

from kvfuzz.case.schedule import Crop, Reorder
from mutants.campaign.declarations import unkept
from mutants.campaign.result import Result
from mutants.campaign.score import score
from mutants.library.mutant import steps
from mutants.library.registry import find
from mutants.report.text import render

FAULT = find("crop.keeps_one_too_many")
CROP, PLAIN = steps(3, Crop(1), 1), steps(2, 1)
SHUFFLED = steps(2, Reorder((1, 0)), 1, rows=2)


def result(*kills, laws=("agreement",), state="killed", mutant=FAULT):
    return Result(mutant.id, mutant.operator, state, kills=kills, laws=laws)


def test_a_mutant_declares_what_its_witness_exercises():
    """In words of the schedules, and its law."""
    assert FAULT.exercises == ("decode", "crop")
    assert {"left padding", "mask"} <= set(find("padding.is_taken_for_text").exercises)
    assert FAULT.to_json()["exercises"] == ["decode", "crop"]
    assert find("norm.skips_before_attention").exercises == ()


def test_a_word_that_no_kill_has_is_told():
    """If some case has it; and not of what was not killed at all."""
    cases = [CROP, PLAIN]
    assert unkept([result(0)], cases, [FAULT]) == ()
    assert unkept([result(1)], cases, [FAULT]) == ((FAULT.id, "crop"),)
    assert unkept([result(0)], [PLAIN, SHUFFLED], [FAULT]) == ()
    assert unkept([result(state="survived")], cases, [FAULT]) == ()
    assert unkept([result(1)], cases, []) == ()


def test_a_law_that_no_kill_breaks_is_told():
    """The declared one, not another."""
    fault = replace(FAULT, law="frame")
    assert unkept([result(0)], [CROP], [fault]) == ((FAULT.id, "law frame"),)
    assert unkept([result(0, laws=("frame",))], [CROP], [fault]) == ()


def test_a_score_with_an_unkept_word_is_no_pass(run, monkeypatch):
    """In the verdict, the exit code, the text and the JSON; and only with a matrix.

    The fault swaps nothing where no row moves, so a word of cases without a reordering is unkept.
    """
    ids, asked = ("reorder.moves_keys_alone",), {"examples": 40, "seed": 1, "shrink": False}
    kept = score("zoo", ids=ids, matrix=True, **asked)
    assert (kept.verdict, kept.unkept) == ("killed", ())
    monkeypatch.setattr(type(FAULT), "exercises", property(lambda self: ("reset",)))
    monkeypatch.setattr(
        "mutants.campaign.declarations.elements", lambda case: frozenset({word(case)})
    )
    first = score("zoo", ids=ids, **asked)
    assert (first.verdict, first.unkept) == ("killed", ())
    broken = score("zoo", ids=ids, matrix=True, **asked)
    assert broken.verdict == "survived"
    assert broken.unkept == ((ids[0], "reset"),)
    assert broken.to_json()["unkept"] == [{"id": ids[0], "declares": "reset"}]
    console = Console(width=200)
    with console.capture() as shown:
        render(broken, console)
    assert f"DECLARED BUT DID NOT KILL {ids[0]}: reset" in shown.get()
    options = ("--mutant", ids[0], "--examples", "40", "--seed", "1", "--no-shrink")
    assert run("score", "zoo", *options, "--matrix")[0] == 1
    assert run("score", "zoo", *options)[0] == 0


def word(case):
    """`reset` for cases without a reordering, which cannot kill that fault."""
    return "reorder" if any(isinstance(entry, Reorder) for entry in case.schedule) else "reset"


def test_the_command_shows_what_a_mutant_declares(run, tmp_path):
    """In the text and in the JSON."""
    file = tmp_path / "one.json"
    code, out = run("mutants", FAULT.id, "--json", file)[:2]
    assert code == 0
    assert "killed by cases with  decode, crop" in out
    assert json.loads(file.read_text())["mutants"][0]["exercises"] == ["decode", "crop"]
