"""What the page tells of all mutants at once: matrix, cases to kill, narrow kills."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from kvfuzz.case.case import Case
from mutants.campaign.result import Result
from mutants.library.registry import library
from mutants.report.html import render
from mutants.report.report import Report
from mutants.report.tables import BOUNDS, barely_killed, examples_to_kill, kill_matrix
from tests.mutants.scores import all_survived, made, result
from tests.pages import Page

CASES = (
    Case(((1, 2),), (1, 1)),
    Case(((1, 2),), (1, 1), seed=1),
    Case(((1, 2, 3),), (2, 1)),
    Case(((1, 2, 3, 4),), (2, 2)),
)
"""Two token by token, one prefill + decode, one chunks."""


def killed(name: str, *kills: int, **fields):
    """A mutant that these of the CASES kill, by agreement unless told otherwise."""
    laws = fields.pop("laws", ("agreement",) * len(kills))
    return result(name, killed_by=kills[0], kills=kills, laws=laws, ran=len(CASES), **fields)


def test_the_matrix_counts_kills_by_family_and_by_law() -> None:
    """Of the cases that the mutant met; laws that nothing broke have no column."""
    score = made(
        [
            killed("append.prepends", 0, 1, 3),
            killed("append.one_slot_late", 2, 3, laws=("agreement", "frame")),
            result("layer.reads_the_layer_below", "timed_out", ran=2),
        ],
        cases=CASES,
        matrix=True,
    )
    matrix = kill_matrix(score)
    assert matrix is not None
    assert [(each.kind, each.name, each.cases) for each in matrix.columns] == [
        ("family", "token by token", 2),
        ("family", "prefill + decode", 1),
        ("family", "chunks", 1),
        ("law", "agreement", 4),
        ("law", "frame", 4),
    ]
    squares = {
        row.result.id: [(square.kills, square.ran) for square in row.squares] for row in matrix.rows
    }
    assert squares == {
        "layer.reads_the_layer_below": [(0, 2), (0, 0), (0, 0), (0, 2), (0, 2)],
        "append.one_slot_late": [(0, 2), (1, 1), (1, 1), (1, 4), (1, 4)],
        "append.prepends": [(2, 2), (0, 1), (1, 1), (3, 4), (0, 4)],
    }
    assert list(squares) == [
        "layer.reads_the_layer_below",
        "append.one_slot_late",
        "append.prepends",
    ]
    shades = [square.shade for square in matrix.rows[2].squares]
    assert shades == [4, 0, 4, 3, 0]


def test_the_page_draws_the_matrix_as_a_table() -> None:
    """With a heading for each row and column, a number in each square, and nothing where no such
    case was run."""
    score = made(
        [killed("append.prepends", 0, 1), result("append.one_slot_late", "timed_out", ran=1)],
        cases=CASES,
        matrix=True,
    )
    text = render(Report(score))
    drawn = text[text.index('<table class="matrix">') :]
    table = Page(drawn[: drawn.index("</table>") + len("</table>")])
    assert table.faults == []
    heads = [a["scope"] for tag, a in table.tags if tag == "th"]
    assert (heads.count("col"), heads.count("row")) == (5, 2)
    assert table.text == (
        "mutant token by token (2) prefill + decode (1) chunks (1) agreement "
        "append.one_slot_late timed out · · append.prepends 2 · · 2"
    )


def test_a_large_matrix_stays_small() -> None:
    """With 200 mutants it takes no more than 250 bytes a mutant and 40 a square."""
    names = [name for name, known in library().items() if not known.placebo]
    score = made(
        [killed(names[number % len(names)], 0, 1, 2) for number in range(200)],
        cases=CASES * 50,
        matrix=True,
    )
    text = render(Report(score))
    drawn = text[text.index('<table class="matrix">') : text.index("Share of the cases that kill")]
    squares = drawn.count("<td")
    assert squares == 200 * 4
    assert len(drawn) < 200 * 250 + 40 * squares


def test_without_a_matrix_the_page_says_how_to_have_one() -> None:
    """A mutant that stopped at its first kill makes no claim about the other cases."""
    score = made([killed("append.prepends", 0)], cases=CASES)
    assert kill_matrix(score) is None
    text = render(Report(score))
    assert '<table class="matrix">' not in text
    assert "With --matrix every case runs on every mutant" in Page(text).text


@pytest.mark.parametrize("matrix", [False, True])
def test_cases_to_kill_count_every_kill_once(matrix) -> None:
    """By the number of cases that were met: with a matrix, up to the first that kills as they were
    drawn. What was not killed is not there."""
    firsts = [1, 1, 2, 3, 5, 6, 10]
    score = made(
        [
            *(killed_after(at, matrix, name=f"append.a{i}") for i, at in enumerate(firsts)),
            result("append.b", "survived"),
            result("append.c", "invalid", killed_by=3, kills=(3,)),
        ],
        matrix=matrix,
    )
    bars = examples_to_kill(score)
    assert [(bar.label, bar.mutants) for bar in bars] == [
        ("1", 2),
        ("2", 1),
        ("3 to 5", 2),
        ("6 and more", 2),
    ]
    assert [bar.share for bar in bars] == [1.0, 0.5, 1.0, 1.0]
    assert examples_to_kill(all_survived(3)) == []


def killed_after(number: int, matrix: bool, name: str) -> Result:
    """A kill by the case of this number that was met: with a matrix the one drawn then, of more;
    without, whichever comes first for the mutant, and the last."""
    at = number - 1 if matrix else 9
    return result(name, killed_by=at, kills=(at,), ran=10 if matrix else number)


@pytest.mark.parametrize("bound", BOUNDS)
def test_no_kill_falls_between_two_bars(bound) -> None:
    """On both sides of each bound."""
    near = [number for number in (bound - 1, bound, bound + 1) if number >= 1]
    score = made([killed_after(number, False, f"append.a{number}") for number in near])
    assert sum(bar.mutants for bar in examples_to_kill(score)) == len(near)


def test_the_narrowest_kills_come_first() -> None:
    """At most ten; those by a law that measures nothing are not narrow."""
    score = made(
        [
            killed("append.prepends", 0, excess=math.inf, laws=("frame",)),
            killed("append.one_slot_late", 0, excess=1.01),
            *(killed(f"append.a{number:02}", 0, excess=2.0 + number) for number in range(20)),
            result("append.b", "survived", excess=0.0),
        ],
        cases=CASES,
    )
    found = [each.id for each in barely_killed(score)]
    assert found == ["append.one_slot_late", *(f"append.a{number:02}" for number in range(9))]
    text = Page(render(Report(score))).text
    assert "append.one_slot_late 1.01 \N{MULTIPLICATION SIGN} float32 agreement 0" in text


def test_what_was_not_killed_heads_the_page_with_what_would_kill_it() -> None:
    """Before what was run: each with a link to its place in the list."""
    score = made([killed("append.prepends", 0), result("append.one_slot_late", "survived")])
    found = Page(render(Report(score, {"append.prepends": Path("w.json")})))
    text = found.text
    remedy = text.index("a case like its witness: prefill 1, decode 1")
    assert text.index("Not killed, and what would kill them") < remedy < text.index("By operator")
    links = {a["href"] for tag, a in found.tags if tag == "a" and a["href"].startswith("#")}
    ids = {f"#{a['id']}" for _, a in found.tags if "id" in a}
    assert "#append.one_slot_late" in links
    assert links <= ids
