"""The HTML report: one page, alone in the world, that says what the score says."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from kvfuzz.case.case import Case
from kvfuzz.case.features import family
from kvfuzz.report.words import number
from kvfuzz.subjects.trace import Site
from mutants.campaign.result import Result, Score, percent_text
from mutants.campaign.score import score as run_score
from mutants.library.registry import library
from mutants.mutant import STATES, Mutant
from mutants.report import html as report
from mutants.report.listing import highlighted
from mutants.report.report import Report
from tests.mutants.scores import made, one_of_each_state, result
from tests.pages import HOSTILE, Page, loads

KILLED = ("append.prepends", "layer.writes_to_the_layer_below")


@pytest.fixture(scope="module")
def real() -> Score:
    """A real score of two mutants."""
    return run_score(
        "zoo", mutants=KILLED, examples=8, seed=1, command="kvfuzz score zoo --seed {}".format
    )


@pytest.fixture
def written() -> dict[str, Path]:
    return {mutant_id: Path("kept here") / f"{mutant_id}.json" for mutant_id in KILLED}


def scores(real: Score) -> list[Score]:
    return [
        real,
        replace(real, matrix=True),
        one_of_each_state(),
        made([], verdict="inconclusive", reason="the unmutated zoo diverges", placebos=()),
    ]


def test_the_page_is_well_formed(real: Score, written: dict[str, Path]) -> None:
    """Every tag that is opened is closed, whatever the score."""
    for score in scores(real):
        assert Page(report.render(Report(score, written))).faults == []


def test_the_page_needs_nothing_else(real: Score, written: dict[str, Path]) -> None:
    """Only links to public issues lead out of the page, and it loads nothing."""
    for score in scores(real):
        assert loads(report.render(Report(score, written))) == []


def test_ids_are_unique(real: Score, written: dict[str, Path]) -> None:
    """No two elements have the same id, so a link to a mutant finds it."""
    ids = [a["id"] for _, a in Page(report.render(Report(real, written))).tags if "id" in a]
    assert len(ids) == len(set(ids))


def test_the_page_tells_the_score(real: Score, written: dict[str, Path]) -> None:
    """The score, what it is made of, the identity of the run and how to repeat it are there."""
    text = Page(report.render(Report(real, written))).text
    assert "100.0 %" in text
    assert "All mutants in the score were killed." in text
    assert "killed ÷ (killed + survived + unreached + timed out) = 2 ÷ 2 = 100.0 %" in text
    assert "kvfuzz score zoo --seed 1" in text
    assert "placebo.passes_through survived; 8 cases ran" in text


def test_the_page_tells_each_mutant(real: Score, written: dict[str, Path]) -> None:
    """Id, description, target, site, witness, replay command and both sources are there."""
    text = Page(report.render(Report(real, written))).text
    for item in real.results:
        known, seen = library()[item.id], (item.witness or {})["verdict"]["first"]
        assert item.id in text
        assert known.description in text
        assert f"{Site.parse(item.site or '').prose}, as declared" in text
        assert f"logit[{seen['token']}]" in text
        assert number(seen["difference"]) in text
        assert f"kvfuzz replay 'kept here/{item.id}.json'" in text
        assert f"def {known.name}(" in " ".join(text.split())
    assert "def store(cache: Cache, layer: int, key: Tensor, value: Tensor)" in text


def test_the_map_shows_every_place(real: Score, written: dict[str, Path]) -> None:
    """The map has one coloured cell for each difference that was measured, layers from 1."""
    page = Page(report.render(Report(real, written)))
    assert len(page.cells) == sum(len(item.map) for item in real.results)
    assert "cache of layer 1" in page.text
    assert "layer 0" not in page.text


def test_the_map_outlines_the_first_divergence(real: Score, written: dict[str, Path]) -> None:
    """Exactly one cell of each map is outlined: the place that was located."""
    page = Page(report.render(Report(real, written)))
    outlined = [a["title"] or "" for tag, a in page.classed("first") if tag == "td"]
    located = [(item.witness or {})["located"] for item in real.results]
    assert len(outlined) == len(located)
    for where in located:
        site, step = Site.parse(where["site"]).prose, where["step"] + 1
        assert any(
            title.startswith("first divergence: ")
            and f"({site}, step {step}, position {where['position']}" in title
            for title in outlined
        )


def test_not_killed_come_first() -> None:
    """Survivors come before what stands beside the score, and that before what was killed; the
    narrowest kill leads the killed ones."""
    score = made(
        [
            result("append.drops_the_newest", excess=500.0),
            result("append.drops_the_oldest", excess=2.0),
            result("append.one_slot_late", "loud", reason="it raised"),
            result("append.prepends", "unreached"),
            result("layer.reads_the_layer_below", "survived"),
        ]
    )
    assert Page(report.render(Report(score))).mutants == [
        "layer.reads_the_layer_below",
        "append.prepends",
        "append.one_slot_late",
        "append.drops_the_oldest",
        "append.drops_the_newest",
    ]


def test_a_matrix_puts_the_rarely_killed_first() -> None:
    """With every case run, the mutant that the fewest cases kill leads the killed ones."""
    score = made(
        [
            result("append.drops_the_newest", kills=(0, 1, 2), excess=2.0),
            result("append.drops_the_oldest", kills=(3,), killed_by=3, excess=500.0),
        ],
        matrix=True,
    )
    assert Page(report.render(Report(score))).mutants[0] == "append.drops_the_oldest"


def test_a_matrix_draws_one_square_a_case() -> None:
    """There are as many squares as cases, as many dark as kills, and dotted ones if time ran
    out."""
    kills = (1, 4, 9)
    score = made([result("append.prepends", kills=kills, killed_by=1)], matrix=True)
    page = Page(report.render(Report(score)))
    squares = [a["class"] for tag, a in page.tags if tag == "i" and "title" in a]
    assert (squares.count("kill"), len(squares)) == (len(kills), len(score.cases))
    assert "3 of 10 cases" in page.text

    stopped = replace(result("append.prepends", "timed_out"), ran=4)
    page = Page(report.render(Report(made([stopped], matrix=True))))
    squares = [a["class"] for tag, a in page.tags if tag == "i" and "title" in a]
    assert (squares.count("spared"), squares.count("unrun")) == (4, 6)


def test_without_a_matrix_there_are_no_squares(real: Score, written: dict[str, Path]) -> None:
    """A mutant that stopped at its first kill makes no claim about the other cases."""
    assert not Page(report.render(Report(real, written))).classed("squares")


def test_no_score_is_said_and_not_green() -> None:
    """Without a percentage the page says NO SCORE and why, and shows no 100 %."""
    score = made([], verdict="inconclusive", reason="the unmutated zoo diverges on case 3")
    page = Page(report.render(Report(score)))
    assert "NO SCORE" in page.text
    assert "The unmutated zoo diverges on case 3" in page.text
    assert "100.0 %" not in page.text
    assert page.classed("verdict")[0][1]["class"] == "verdict inconclusive"


def test_a_killed_placebo_is_shown() -> None:
    """The page names the placebo and says that there is no score."""
    killed = Result("placebo.passes_through", "placebo", "killed", ran=3, reached=9)
    score = made([], verdict="inconclusive", reason="a placebo is killed", placebos=(killed,))
    text = Page(report.render(Report(score))).text
    assert "placebo.passes_through killed; 3 cases ran" in text
    assert "the checker raises false alarms" in text
    assert "None was killed" not in text


def test_every_state_is_shown() -> None:
    """Each state has its count and its mutant, with the reason."""
    page = Page(report.render(Report(one_of_each_state())))
    assert len(page.mutants) == len(STATES)
    for state in STATES:
        assert [1 for _, a in page.classed("mutant") if a["data-state"] == state] == [1]
        assert state == "killed" or f"because of {state}" in page.text
    assert "25.0 %" in page.text
    assert "1 of 4 mutants were killed: 1 survived, 1 unreached, 1 timed out." in page.text


@pytest.mark.parametrize(("invalid", "told"), [(1, "1 is invalid"), (2, "2 are invalid")])
def test_a_score_of_100_percent_names_the_invalid_mutants(invalid: int, told: str) -> None:
    """All mutants in the score were killed, and still the verdict is not `killed`."""
    killed = [result("append.prepends"), result("append.one_slot_late")]
    results = [*killed, *(result(f"crop.a{n}", "invalid") for n in range(invalid))]
    text = Page(report.render(Report(made(results, verdict="survived")))).text
    assert f"All mutants in the score were killed, but {told}." in text


def test_a_site_that_is_not_the_declared_one_is_said() -> None:
    """When a mutant shows first elsewhere than declared, the page says so in words."""
    page = Page(report.render(Report(made([result("append.prepends", site="1.attention")]))))
    assert "attention of layer 2 but the mutant declares: cache of layer 1" in page.text


@pytest.mark.parametrize("seen_in", ["owner/repo#12", f"a thread {HOSTILE}"])
def test_what_comes_from_data_is_text(
    seen_in: str, monkeypatch: pytest.MonkeyPatch, fault: Callable[..., Any]
) -> None:
    """Markup in a description, a reason, a path or a setting comes out as text."""
    hostile = Mutant(
        HOSTILE, HOSTILE, f"It {HOSTILE}.", (f"m:{HOSTILE}",), fault, None, None, seen_in=seen_in
    )
    monkeypatch.setattr(report, "known", {"x.y": hostile}.get)
    case = Case(((1,),), (1,), config={HOSTILE: HOSTILE})
    seen = {"first": None, "dtype": HOSTILE, "status": "diverged"}
    witness = {"case": case.to_json(), "verdict": seen, "located": None, "torch": HOSTILE}
    killed = replace(result("x.y", reason=HOSTILE, witness=witness), operator=HOSTILE)
    score = made([killed], subject=HOSTILE, reason=HOSTILE)
    page = Page(report.render(Report(score, {"x.y": Path(HOSTILE)})))
    assert page.faults == []
    assert [tag for tag, _ in page.tags].count("script") == 1
    assert f"It {HOSTILE}." in page.text
    links = [a["href"] for tag, a in page.tags if tag == "a" and a["href"] != "#x.y"]
    expected = ["https://github.com/owner/repo/issues/12"] if "#12" in seen_in else []
    assert links == expected


@pytest.fixture
def fault() -> Callable[..., Any]:
    return lambda real: real  # <b>a comment</b>


def test_the_same_score_gives_the_same_page(real: Score, written: dict[str, Path]) -> None:
    """Two reports on one score are equal, character by character."""
    assert report.render(Report(real, written)) == report.render(Report(real, written))


def test_a_mutant_that_left_the_library_is_still_listed() -> None:
    """A result whose mutant is unknown has no source, but it is not lost."""
    page = Page(report.render(Report(made([result("gone.for_good", "survived")]))))
    assert page.mutants == ["gone.for_good"]
    assert "no longer in the library" in page.text


def test_a_score_below_100_never_rounds_up_to_it() -> None:
    """100 % is printed for all killed only."""
    assert percent_text(100 * 2999 / 3000, 1) == "99.9 %"
    assert percent_text(100 * 249 / 250, 0) == "99 %"
    assert percent_text(100.0, 1) == "100.0 %"
    assert percent_text(None, 0) == "-"


@pytest.mark.parametrize(
    ("schedule", "name"),
    [
        ((1,), "token by token"),
        ((1, 1, 1), "token by token"),
        ((3,), "prefill only"),
        ((3, 1, 1), "prefill + decode"),
        ((3, 2), "chunks"),
        ((1, 1, 2), "chunks"),
    ],
)
def test_schedules_have_families(schedule: tuple[int, ...], name: str) -> None:
    """A schedule is named after the strategy's families."""
    case = Case(((1,) * sum(schedule),), schedule)
    assert family(case) == name


@pytest.mark.parametrize(
    "source",
    [
        "def f(a):\n    return a < 1  # <b>\n",
        'def f():\n    """Two\n    lines & more."""\n\n    return 0',
        "def broken(:\n    '''never closed",
        "lambda real: real)",
        "",
    ],
)
def test_highlighting_loses_nothing(source: str) -> None:
    """Without its spans a highlighted source is the source, even if it is not Python."""
    page = Page(str(highlighted(source)))
    assert "".join(page.words) == source
    assert {tag for tag, _ in page.tags} <= {"span"}
