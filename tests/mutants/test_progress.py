"""What a score prints while it runs, and in which order when it is done."""

from dataclasses import replace

import pytest
from rich.console import Console

from mutants.campaign.result import Result
from mutants.report.progress import FamilyLines, family_line
from mutants.report.text import render, score_line
from tests.mutants.scores import made, one_of_each_state, result


def test_a_family_gets_its_line_when_all_of_it_is_judged():
    """With the time that the rest takes at this rate; in whatever order results come."""
    said, now = [], [100.0]
    lines = FamilyLines(said.append, clock=lambda: now[0])
    lines.begin(["append.a", "append.b", "crop.a", "crop.b", "crop.c"])
    lines.add(result("append.a"))
    lines.add(result("crop.a"))
    assert said == []
    now[0] += 6
    lines.add(result("append.b"))
    assert said == ["append          2 killed [6 s, about 4 s left]"]
    lines.add(result("crop.c", state="survived"))
    lines.add(result("crop.b", state="equivalent"))
    assert said[1:] == ["crop            1 killed, 1 survived (c), 1 equivalent [6 s]"]


def test_those_to_look_at_are_named():
    """What was not killed or went wrong, and no placebo, which has to survive."""
    found = [Result(f"a.{state}", "a", state) for state in ("loud", "unreached", "inapplicable")]
    assert family_line("a", found).split(maxsplit=1)[1] == (
        "1 unreached (unreached), 1 loud (loud), 1 inapplicable"
    )
    spared = [Result("placebo.passes_through", "placebo", "survived")]
    assert family_line("placebo", spared).split(maxsplit=1)[1] == "1 survived"


def test_the_lines_come_out_where_there_is_no_terminal(run, tmp_path):
    """On standard error; standard output holds the result alone."""
    asked = ("--operator", "layer", "--examples", 3, "--seed", 1, "--folder", tmp_path)
    _, out, err = run("score", "zoo", *asked)
    shown = [line.split()[0] for line in err.splitlines()]
    assert sorted(shown) == ["canary", "layer", "placebo"]
    assert " left]" in err
    assert " left]" not in out


def printed(score):
    console = Console(width=200, record=True, file=open("/dev/null", "w"))  # noqa: SIM115
    render(score, console)
    return console.export_text()


def test_what_was_not_killed_comes_first_and_what_does_not_count_last():
    """Then the table, then the score."""
    text = printed(one_of_each_state())
    places = [
        text.index(word) for word in ("SURVIVED ", "TIMED_OUT ", "LOUD ", "mutants by operator")
    ]
    assert places == sorted(places)
    assert text.index("mutants by operator") < text.index("MUTATION SCORE")
    assert text.index("MUTATION SCORE") < text.index("equivalent, so that no case can kill them: ")


def test_controls_are_told_and_counted_right():
    """One placebo is not many, and a canary that lives is shown."""
    placebo, canary = Result("p.a", "p", "survived"), Result("c.a", "c", "killed")
    one = replace(made([result("a.b")]), placebos=(placebo,), canaries=(canary,))
    assert "1 placebo survived, 1 canary killed" in score_line(one)
    assert f"({one.subject}, {len(one.cases)} case" in score_line(one)
    two = replace(one, placebos=(placebo,) * 2, canaries=(canary,) * 2, cases=one.cases[:1])
    assert "2 placebos survived, 2 canaries killed" in score_line(two)
    assert ", 1 case, " in score_line(two)
    blind = replace(one, canaries=(replace(canary, state="survived"),))
    assert "SURVIVED c.a" in printed(blind)
    assert "canar" not in score_line(blind)


@pytest.mark.parametrize("kills", [True, False, None])
def test_the_declared_witness_is_shown_where_it_kills_too(kills):
    """Beside the case that killed."""
    from mutants.campaign.score import score
    from mutants.report import html
    from mutants.report.report import Report

    found = score("zoo", mutants=("append.prepends",), seed=0, examples=5)
    assert found.results[0].declared_kills is True
    shown = replace(found, results=(replace(found.results[0], declared_kills=kills),))
    page = html.render(Report(shown))
    assert ("The declared witness, which kills it too" in page) == (kills is True)
