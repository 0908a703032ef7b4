"""The options that write reports: all at once, checked before the work, whole or not at all."""

from __future__ import annotations

import json
import os
import re
import stat
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

import mutants.report
from kvfuzz.errors import UsageError
from mutants.report import witnesses
from mutants.report.badge import render
from mutants.report.github import SUMMARY, append_summary
from mutants.report.markdown import LEAST, LIMIT
from mutants.report.outputs import Format, Outputs, check_outputs, write_outputs
from mutants.report.report import Report
from tests.mutants.scores import all_survived, made, no_score, result

QUICK = ("score", "zoo", "--mutant", "append.prepends", "--examples", "3", "--seed", "1")
FILES = {
    "--json": "score.json",
    "--html": "score.html",
    "--mutation-report": "mutation.json",
    "--junit": "junit.xml",
    "--markdown": "score.md",
    "--badge": "badge.json",
}


def test_all_reports_at_once(run, tmp_path) -> None:
    """Each is there, and the command that gives the same again names none of them."""
    folder = tmp_path / "reports"
    options = [word for option, name in FILES.items() for word in (option, folder / name)]
    code, out, _ = run(*QUICK, *options, "--folder", tmp_path, "--no-shrink")
    assert code == 0
    assert {file.name for file in folder.iterdir()} == set(FILES.values())
    assert all(file.stat().st_size for file in folder.iterdir())
    command = json.loads((folder / "score.json").read_text())["command"]
    assert command == "kvfuzz score zoo --mutant append.prepends --examples 3 --seed 1"
    assert out.rstrip().endswith(f"report: {folder / 'score.html'}")


def test_a_witness_that_cannot_be_written_costs_no_report(run, tmp_path, monkeypatch) -> None:
    """A disk that is full by now: what was judged is told, with the error and its exit code."""

    def full(path: Path, _: object) -> None:
        raise UsageError(f"cannot write {path}: No space left on device")

    monkeypatch.setattr(witnesses, "write_json", full)
    file = tmp_path / "reports" / "score.json"
    code, out, err = run(*QUICK, "--json", file, "--folder", tmp_path / "kept", "--no-shrink")
    assert code == 2
    assert "No space left on device" in err
    assert "1 of 1 killed" in out
    assert json.loads(file.read_text())["mutants"][0]["counterexample"]


def test_what_was_not_begun_in_time_is_one_line(run, tmp_path) -> None:
    """With the way on, in place of a line for each of two hundred."""
    late = ("score", "zoo", "--seconds", "0.001", "--examples", "3", "--seed", "1")
    code, out, _ = run(*late, "--folder", tmp_path)
    assert code == 3
    lines = [line for line in out.splitlines() if line.startswith("TIMED OUT")]
    assert len(lines) == 1
    assert int(lines[0].split()[2]) > 200
    assert "--resume runs them" in lines[0]


def test_the_command_of_a_shard_gives_it_again(run, tmp_path) -> None:
    """As it was typed."""
    file, shard = tmp_path / "score.json", ("--shard", "1/2", "--no-shrink")
    assert run(*QUICK, *shard, "--json", file, "--folder", tmp_path)[0] == 0
    command = json.loads(file.read_text())["command"]
    words = "score zoo --mutant append.prepends --examples 3 --shard 1/2 --seed 1"
    assert command == f"kvfuzz {words}"
    assert run(*words.split(), "--folder", tmp_path)[0] == 0


@pytest.mark.parametrize("option", FILES)
def test_a_file_that_cannot_be_written_is_refused_before_the_work(run, tmp_path, option) -> None:
    """In one line, and nothing was scored."""
    code, out, error = run(*QUICK, option, tmp_path, "--folder", tmp_path / "kept")
    assert (code, out) == (2, "")
    assert error == f"kvfuzz: cannot write {tmp_path}: it is a directory; name a file\n"
    assert not (tmp_path / "kept").exists()


def test_two_reports_in_one_file_are_refused(run, tmp_path) -> None:
    """The second would be all that is left; by whatever name it is called."""
    file = tmp_path / "report.json"
    again = tmp_path / "." / "x" / ".." / "report.json"
    code, out, error = run(*QUICK, "--json", file, "--badge", again, "--folder", tmp_path)
    assert (code, out) == (2, "")
    assert "two reports would be written to" in error
    check_outputs(Outputs({"json": Path("/dev/null"), "badge": Path("/dev/null")}))


def test_a_report_appears_whole_or_not_at_all(tmp_path, monkeypatch) -> None:
    """What stood there before stays, if the disk fills up."""
    file = tmp_path / "score.json"
    file.write_text("before")

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", full)
    with pytest.raises(Exception, match="No space left on device"):
        write_outputs(Outputs({"json": file}), Report(made([result("append.prepends")])))
    assert file.read_text() == "before"
    assert list(tmp_path.iterdir()) == [file]


@pytest.mark.parametrize(
    ("score", "message", "color"),
    [
        (made([result("append.prepends")]), "100.0 %", "brightgreen"),
        (all_survived(3), "0.0 %", "red"),
        (made([result("append.prepends")] * 2999 + [result("a.b", "survived")]), "99.9 %", "red"),
        (no_score("the unmutated zoo diverges"), "no score", "lightgrey"),
    ],
)
def test_the_badge_is_green_for_all_killed_alone(score, message, color) -> None:
    """By the schema of https://shields.io/badges/endpoint-badge: schemaVersion is 1, label and
    message are texts that are not empty."""
    made_badge = json.loads(render(Report(score)))
    assert (made_badge["message"], made_badge["color"]) == (message, color)
    assert made_badge["schemaVersion"] == 1
    assert made_badge["label"]
    assert made_badge["isError"] == (color != "brightgreen")


def test_github_is_told_only_if_asked(run, tmp_path, monkeypatch) -> None:
    """The environment alone changes nothing."""
    summary = tmp_path / "summary.md"
    monkeypatch.setenv(SUMMARY, str(summary))
    survivor = ("--mutant", "crop.leaves_its_slots_in_sight", "--folder", tmp_path, "--no-shrink")
    code, out, _ = run(*QUICK, *survivor)
    assert code == 1
    assert "::error" not in out
    assert not summary.exists()
    code, out, _ = run(*QUICK, *survivor, "--github")
    assert code == 1
    assert "\n::error file=mutants/library/faults/crop.py,line=" in out
    assert summary.read_text().startswith("## 50.0 %: KV cache mutation score of <code>zoo</code>")


def test_without_a_summary_there_are_annotations(run, tmp_path, monkeypatch) -> None:
    """As on a machine of one's own."""
    monkeypatch.delenv(SUMMARY, raising=False)
    code, _, _ = run(*QUICK, "--github", "--folder", tmp_path, "--no-shrink")
    assert code == 0


def test_a_summary_is_added_to_what_the_step_has_told(tmp_path) -> None:
    """And both together are never more than GitHub takes."""
    summary = tmp_path / "summary.md"
    score = made([result("append.prepends", "survived", reason="x" * 300)] * 5000)
    summary.write_text("before\n" * 20_000 + "after")
    append_summary(Report(score), summary)
    text = summary.read_text()
    assert text.startswith("before\nbefore\n")
    assert "\nafter\n## " in text
    assert "mutants are left out here" in text
    assert LIMIT * 0.9 < summary.stat().st_size <= LIMIT


def test_a_full_summary_is_left_as_it_is(tmp_path) -> None:
    """GitHub would drop the whole of it."""
    summary = tmp_path / "summary.md"
    summary.write_text("x" * (LIMIT - LEAST + 1))
    append_summary(Report(all_survived(3)), summary)
    assert summary.stat().st_size == LIMIT - LEAST + 1


def test_a_summary_that_cannot_be_written_is_refused_before_the_work(
    run, tmp_path, monkeypatch
) -> None:
    """As any other report."""
    monkeypatch.setenv(SUMMARY, str(tmp_path))
    code, out, error = run(*QUICK, "--github", "--folder", tmp_path)
    assert (code, out) == (2, "")
    assert error.startswith(f"kvfuzz: cannot write {tmp_path}")


def test_reports_are_readable_by_others(tmp_path) -> None:
    """As a file that a shell makes, not as a temporary one."""
    write_outputs(Outputs({"badge": tmp_path / "b.json"}), Report(all_survived(1)))
    umask = os.umask(0)
    os.umask(umask)
    assert stat.S_IMODE((tmp_path / "b.json").stat().st_mode) == 0o666 & ~umask


def test_the_page_on_adding_a_report_is_true(tmp_path, monkeypatch) -> None:
    """Its module is a report format, and its test passes."""
    page = (Path(__file__).parents[2] / "docs" / "adding-a-report.md").read_text()
    module, test = re.findall(r"^```python\n(\S.*?)^```", page, re.DOTALL | re.MULTILINE)
    (tmp_path / "csv.py").write_text(module)
    monkeypatch.setattr(mutants.report, "__path__", [*mutants.report.__path__, str(tmp_path)])
    names: dict[str, Callable[[], None]] = {}
    exec(test, names)
    names["test_each_mutant_has_a_row"]()
    assert Format("csv", "").render(Report(all_survived(3))).count("survived") >= 3
    monkeypatch.delitem(sys.modules, "mutants.report.csv")
