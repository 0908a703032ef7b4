"""The Markdown summary and the annotations, as GitHub takes them."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from markdown_it import MarkdownIt

from mutants.campaign.result import Score
from mutants.library.registry import library
from mutants.mutant import STATES
from mutants.report.github import KINDS, annotation_lines
from mutants.report.markdown import LEAST, LIMIT, LONGEST, escaped, render
from mutants.report.report import Report
from tests.mutants.scores import all_survived, made, no_score, one_of_each_state, result
from tests.pages import HOSTILE, Page

MEBIBYTE = 1024 * 1024
MARKUP = (
    f"a {HOSTILE} **bold** [a](http://x.y) `c` | d ~~e~~ &lt; @someone #12 _f_ \\ <!-- g\n\n# h"
)


def rendered(score: Score) -> Page:
    """The summary as a reader of Markdown shows it, raw HTML and tables included."""
    return Page(MarkdownIt("gfm-like", {"linkify": False}).render(render(Report(score))))


def listed(page: Page) -> list[str]:
    """The ids in the list of mutants, in order."""
    return [word for word in page.words if re.fullmatch(r"[a-z_]+\.[a-z_]+", word)]


def test_what_was_not_killed_comes_first_with_what_would_kill_it() -> None:
    """Then what stands beside the score, then the killed ones, the narrowest first."""
    page = rendered(
        made(
            [
                result("append.drops_the_newest", excess=500.0),
                result("append.drops_the_oldest", excess=2.0),
                result("append.one_slot_late", "loud", reason="it raised"),
                result("append.prepends", "unreached"),
                result("layer.reads_the_layer_below", "survived"),
            ]
        )
    )
    assert page.faults == []
    assert listed(page) == [
        "layer.reads_the_layer_below",
        "append.prepends",
        "append.one_slot_late",
        "append.drops_the_oldest",
        "append.drops_the_newest",
    ]
    assert "a case like its witness: prefill" in page.text
    assert "kvfuzz fuzz mutant:layer.reads_the_layer_below --seed 7" in page.text
    assert "50.0 %" in page.text


def test_every_state_is_counted_and_told() -> None:
    """The numbers stand under the names of the states."""
    page = rendered(one_of_each_state())
    for state in STATES:
        assert state == "killed" or f"because of {state}" in page.text
    assert f"{' '.join(state.replace('_', ' ') for state in STATES)} {'1 ' * len(STATES)}" in (
        f"{page.text} "
    )


@pytest.mark.parametrize(
    "text", [MARKUP, "a\r\nb", "`" * 9, "||||", "&#60;script&#62;", "__a__ b_"]
)
def test_what_comes_from_data_is_text(text) -> None:
    """Nothing that a model, a path or a package says is Markdown or HTML."""
    plain = rendered(made([result("append.prepends", "survived", reason="x")]))
    hostile = made([result("append.prepends", "survived", reason=text)])
    page = rendered(hostile)
    assert " ".join(text.split()) in page.text
    assert [tag for tag, _ in page.tags] == [tag for tag, _ in plain.tags]
    everywhere = made(
        [result("append.prepends")], subject=text, command=text, environment={text: text}
    )
    ordinary = made([result("append.prepends")], subject="a", command="a", environment={"a": "a"})
    assert [t for t, _ in rendered(everywhere).tags] == [t for t, _ in rendered(ordinary).tags]


def test_without_escaping_the_test_above_fails() -> None:
    """The reader that it uses does read tags, emphasis and tables."""
    page = Page(MarkdownIt("gfm-like", {"linkify": False}).render(MARKUP))
    assert {"script", "strong", "code", "a", "s", "h1"} <= {tag for tag, _ in page.tags}


@pytest.mark.parametrize("reason", ["short", "x" * 100_000, "|" * 100_000, "\N{SNOWMAN}" * 100_000])
def test_it_is_always_below_a_mebibyte(reason) -> None:
    """However many mutants, however long what they say; what was left out is counted."""
    few = all_survived(170, reason=reason)
    many = made([*few.results] * 60, subject=reason, reason=reason)
    text = render(Report(many))
    assert LIMIT * 0.9 < len(text.encode()) < MEBIBYTE
    kept = text.count("\n| <code>")
    left_out = re.search(r"\n(\d+) of (\d+) mutants are left out here\.\n$", text)
    assert left_out is not None
    assert (int(left_out[1]) + kept, int(left_out[2])) == (10_200, 10_200)
    assert len(render(Report(many), LEAST).encode()) <= LEAST


def test_what_fits_is_not_cut() -> None:
    """A whole list has no line that says how many were left out."""
    text = render(Report(all_survived(170)))
    assert "left out" not in text
    assert text.count("\n| <code>") == 170


def test_a_long_text_is_cut_and_says_so() -> None:
    """A command is not: half of it is of no use."""
    assert len(escaped("x" * 5000)) == LONGEST
    assert escaped("x" * 5000).endswith("...")
    command = "kvfuzz score zoo " + " ".join(f"--mutant {name}" for name in list(library())[:50])
    assert command in rendered(made([result("append.prepends")], command=command)).text


def test_no_score_is_said() -> None:
    """Never as a percentage."""
    page = rendered(no_score("the unmutated zoo diverges on case 3"))
    assert "No score" in page.text
    assert "The unmutated zoo diverges on case 3" in page.text
    assert "100" not in page.text


COMMAND = re.compile(r"::(error|warning) ((?:\w+=[^,:\r\n]*,?)+)::([^\r\n]*)")
"""A workflow command, as the runner cuts it."""


def annotated(score: Score) -> list[tuple[str, dict[str, str], str]]:
    """The annotations of a score: kind, properties, text."""
    found = []
    for line in annotation_lines(Report(score)):
        match = COMMAND.fullmatch(line)
        assert match is not None, line
        properties = dict(each.split("=", 1) for each in match[2].split(","))
        found.append((match[1], properties, match[3]))
    return found


def test_survivors_are_errors_at_the_line_of_the_fault() -> None:
    """In the file that the repository has."""
    ((kind, properties, text),) = annotated(made([result("append.prepends", "survived")]))
    assert (kind, properties["title"]) == ("error", "survived%3A append.prepends")
    lines = Path(properties["file"]).read_text().splitlines()
    function = lines[int(properties["line"]) - 1 : int(properties["endLine"])]
    assert any("def prepends(" in line for line in function)
    assert "to kill it: a case like its witness" in text


def test_a_fault_that_is_not_in_the_repository_has_no_place(monkeypatch, tmp_path) -> None:
    """GitHub would look for the file in vain."""
    monkeypatch.chdir(tmp_path)
    ((_, properties, _),) = annotated(made([result("append.prepends", "survived")]))
    assert "file" not in properties


def test_each_state_has_its_kind() -> None:
    """Killed and equivalent mutants have no annotation."""
    kinds = [kind for kind, _, _ in annotated(one_of_each_state())]
    beside = len(set(STATES) & {"loud", "crashed", "invalid"})
    assert kinds == ["error"] * 3 + ["warning"] * beside
    assert {*STATES, "crashed", "inapplicable"} - set(KINDS) == {
        "killed",
        "equivalent",
        "inapplicable",
    }


@pytest.mark.parametrize(("count", "shown"), [(9, 9), (10, 10), (11, 10), (170, 10)])
def test_at_most_ten_of_a_kind_and_the_rest_in_one_line(count, shown) -> None:
    """GitHub drops what comes after the tenth, so the tenth says what is missing."""
    found = annotated(all_survived(count))
    assert len(found) == shown
    rest = count - 9
    assert (found[-1][1]["title"] == f"and {rest} more mutants") == (count > 10)


def test_the_limit_is_one_for_each_kind() -> None:
    """Warnings have room of their own; without a score the reason takes one of the errors."""
    ids = [name for name, known in library().items() if not known.placebo]
    results = [result(name, "survived") for name in ids[:20]]
    results += [result(name, "loud", reason="x") for name in ids[20:40]]
    kinds = [kind for kind, _, _ in annotated(made(results))]
    assert (kinds.count("error"), kinds.count("warning")) == (10, 10)
    stopped = annotated(made(results, percent=None, reason="a placebo is killed"))
    assert [kind for kind, _, _ in stopped].count("error") == 10
    assert stopped[0][1:] == ({"title": "no score"}, "a placebo is killed")


def test_a_text_cannot_end_its_command() -> None:
    """Line breaks, percent signs, and in properties colons and commas are escaped as GitHub's own
    toolkit does."""
    lines = annotation_lines(
        Report(made([result("a,b:c%.d", "survived", reason="x%\r\n::error::y")]))
    )
    assert len(lines) == 1
    assert "\n" not in lines[0]
    assert "x%25%0D%0A::error::y" in lines[0]
    assert "title=survived%3A a%2Cb%3Ac%25.d::" in lines[0]
