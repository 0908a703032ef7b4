"""The table of ratios fails where it must, hides no row, and measures what it says."""

import json
import re
import sys
from types import SimpleNamespace

import click
import pytest
from click.testing import CliRunner

from benchmarks import document, loop
from benchmarks.__main__ import choose, main, run
from benchmarks.row import Measurement, NotRun, Row
from benchmarks.rows import ROWS
from benchmarks.timing import command_seconds, cpu_seconds

BOUNDS = {
    "fuzz-loop.zoo": 2.5,
    "fuzz-loop.llama": 2.0,
    "fuzz-loop.gemma2": 2.0,
    "fuzz-loop.mamba2": 2.0,
    "16-rows": 1.2,
    "start.help": 0.05,
    "start.planted-bug": 1.8,
    "clean-cases": 5.0,
    "two-workers": 1.85,
    "noise-floor": 4.0,
    "all-prefixes": 1.3,
    "locate-three-operations": 0.3,
    "locate": 10.0,
    "score.command": 15.0,
    "score.first-kills": 1.8,
    "score.mutmut": 0.08,
    "cases-to-kill": 1 / 3,
    "memory": 1.0,
    "readme.try": 45.0,
    "readme.test": 300.0,
}
"""What each row, or each of its family, must reach."""


@pytest.fixture
def planted(monkeypatch):
    """Returns a function that makes a row that measures what it is given, or raises it."""

    def plant(name, found, **fields):
        def measure(_repeats):
            if isinstance(found, Exception):
                raise found
            return found

        monkeypatch.setitem(sys.modules, f"planted_{name}", SimpleNamespace(measure=measure))
        return Row(name, "this", "that", 2.0, f"planted_{name}:measure", **fields)

    return plant


def measured(*ratios, **fields):
    return Measurement(tuple((ratio, 1.0) for ratio in ratios), **fields)


@pytest.mark.parametrize(
    ("found", "state", "code"),
    [
        (measured(2.1, 2.2, 2.3), "missed", 1),
        (measured(1.9, 2.2, 9.0), "within", 0),
        (measured(1.9, 1.9, 2.3), "met", 0),
        (measured(2.0), "met", 0),
        (measured(1.0, changed="a kill was lost"), "changed", 1),
        (ValueError("broken"), "error", 1),
        (NotRun("mutmut is not installed"), "not run", 3),
    ],
)
def test_a_row_that_misses_its_bound_fails_the_run(planted, capsys, found, state, code):
    assert run([planted("one", found)]) == code
    assert state in capsys.readouterr().out.splitlines()[2]


def test_a_bound_from_below_is_missed_from_below(planted):
    assert run([planted("one", measured(1.5, 1.9), at_least=True)]) == 1
    assert run([planted("one", measured(2.5, 2.9), at_least=True)]) == 0


def test_one_row_that_misses_fails_those_that_do_not(planted):
    assert run([planted("good", measured(1.0)), planted("bad", measured(3.0))]) == 1


def test_a_row_that_cannot_run_is_named_and_never_green(planted, capsys, tmp_path):
    file = tmp_path / "found.json"
    rows = [planted("good", measured(1.0)), planted("absent", NotRun("mutmut is not installed"))]
    assert run(rows, file=file) == 0
    (line,) = [one for one in capsys.readouterr().out.splitlines() if one.startswith("absent")]
    assert "not run" in line
    assert "mutmut is not installed" in line
    row = json.loads(file.read_text())["rows"][1]
    assert (row["state"], row["ratio"], row["reason"]) == (
        "not run",
        None,
        "mutmut is not installed",
    )


def test_the_file_has_all(planted, tmp_path):
    """Versions, commit, processor and load; of each row the pairs, the spread and the evidence."""
    file = tmp_path / "found.json"
    run([planted("one", measured(1.0, 3.0, 2.0, evidence="no alarm"))], file=file)
    data = json.loads(file.read_text())
    names = {"python", "torch", "hypothesis", "kvfuzz", "processor", "load"}
    assert names <= data["environment"].keys()
    (row,) = data["rows"]
    assert (row["ratio"], row["least"], row["most"]) == (2.0, 1.0, 3.0)
    assert row["pairs"] == [[1.0, 1.0], [3.0, 1.0], [2.0, 1.0]]
    assert (row["evidence"], row["bound"], row["state"]) == ("no alarm", 2.0, "met")
    assert re.fullmatch(r"[\d.]+", row["load"])


def test_the_table_has_the_bounds_that_were_set():
    found = {row.name: row.bound for row in ROWS}
    assert len(found) == len(ROWS)
    for name, bound in BOUNDS.items():
        family = {b for n, b in found.items() if n == name or n.startswith(f"{name}.")}
        assert family == {bound}, name


def test_every_row_names_a_function():
    for row in ROWS:
        assert callable(row._function()), row.name


def test_rows_are_chosen_by_name_or_family_and_slow_ones_by_name_only():
    assert [row.name for row in choose(ROWS, ["fuzz-loop.zoo"])] == ["fuzz-loop.zoo"]
    assert {row.name.partition(".")[0] for row in choose(ROWS, ["noise-floor"])} == {"noise-floor"}
    assert not any(row.slow for row in choose(ROWS, []))
    assert [row.name for row in choose(ROWS, ["readme.try"])] == ["readme.try"]
    with pytest.raises(click.UsageError, match="there is no row 'speed'"):
        choose(ROWS, ["speed"])


def test_the_list_names_every_row_and_runs_none():
    result = CliRunner().invoke(main, ["--list"])
    assert result.exit_code == 0
    assert [line.split()[0] for line in result.output.splitlines()] == [row.name for row in ROWS]


def test_the_time_of_a_command_is_that_of_its_processor():
    """Not the time that it sleeps; and one that fails is no measurement."""
    seconds, printed = command_seconds(
        [sys.executable, "-c", "import time; time.sleep(1); print(1)"]
    )
    assert 0 < seconds < 0.9
    assert printed == "1\n"
    assert cpu_seconds(lambda: 7.0) == 7.0
    with pytest.raises(RuntimeError, match="ended with 3"):
        command_seconds([sys.executable, "-c", "raise SystemExit(3)"])


def test_the_loop_is_measured_on_the_cases_that_it_judged(monkeypatch):
    """Those of the built-in decoder; an alarm on the way makes the row fail."""
    monkeypatch.setattr(loop, "EXAMPLES", 6)
    found = loop.fuzz_loop("zoo", 1)
    assert found.changed is None
    assert re.match(r"\d+ cases, \d+ read their cache and agreed", found.evidence)
    assert found.ratios[0] > 1
    wrong = loop.fuzz_loop("mutant:position.restarts_at_each_chunk", 1)
    assert wrong.changed.startswith("false alarm: Case(")


def test_the_page_shows_what_a_run_wrote(planted, tmp_path):
    files = [tmp_path / name for name in ("all.json", "one.json")]
    good, absent = planted("good", measured(1.0)), planted("absent", NotRun("no mutmut"))
    run([good, absent], file=files[0])
    run([planted("absent", measured(5.0, evidence="all killed"))], file=files[1])
    never = planted("never", measured(1.0))
    found = [json.loads(file.read_text()) for file in files]
    old = f"before\n{document.BEGIN}old\n| `kept` | a | b | c |\n{document.END}after\n"
    rows = [good, absent, never, planted("kept", measured(1.0))]
    page = document.replace_block(old, document.block(found, rows, document.lines_of(old)))
    assert page.startswith("before\n")
    assert page.endswith("after\n")
    assert "\nold" not in page
    rows = {name: cells for name, *cells in table_of(page)}
    assert rows["`good`"][2:5] == ["1 (1 to 1)", "≤ 2", "met"]
    assert rows["`absent`"][2:6] == ["5 (5 to 5)", "≤ 2", "**missed**", "all killed"]
    assert re.fullmatch(r"\w+\+?, [\d.]+", rows["`absent`"][6])
    assert rows["`never`"][2:6] == ["-", "≤ 2", "not run", "not measured here"]
    assert rows["`kept`"] == ["a", "b", "c"]


def table_of(page):
    """Returns the cells of the rows of a measured table."""
    text = page.partition(document.BEGIN)[2].partition(document.END)[0]
    lines = [line for line in text.splitlines() if line.startswith("| `")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]


def test_the_page_has_every_row_and_explains_it():
    page = document.PAGE.read_text()
    assert [row[0] for row in table_of(page)] == [f"`{row.name}`" for row in ROWS]
    for name in {row.name.partition(".")[0] for row in ROWS}:
        assert f"**{name}**" in page, name
