"""Reports are written whole or not at all."""

import json
import math
import os
import stat

import pytest

from kvfuzz.errors import UsageError
from kvfuzz.files import check_writable, to_json_text, write_text


def test_a_failed_write_leaves_the_old_file_and_nothing_else(tmp_path, monkeypatch):
    """A reader never sees half a report."""
    path = tmp_path / "report.json"
    path.write_text("old")

    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", full)
    with pytest.raises(UsageError, match="cannot write .*: No space left on device"):
        write_text(path, "new")
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


def test_missing_folders_are_made(tmp_path):
    """As one expects of --json out/report.json."""
    write_text(tmp_path / "a" / "b.json", "text")
    assert (tmp_path / "a" / "b.json").read_text() == "text"


def test_a_report_may_be_read_by_others(tmp_path):
    """A temporary file's mode would keep it private."""
    path = tmp_path / "report.json"
    write_text(path, "text")
    current = os.umask(0)
    os.umask(current)
    assert stat.S_IMODE(path.stat().st_mode) == 0o666 & ~current


@pytest.mark.parametrize("place", ["", "file/report.json"])
def test_a_path_that_cannot_be_written_is_refused_before_the_work(tmp_path, place):
    """A directory, or a folder that is a file; and nothing is left behind."""
    (tmp_path / "file").write_text("")
    with pytest.raises(UsageError, match="cannot write"):
        check_writable(tmp_path / place)
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_checking_leaves_nothing_behind(tmp_path):
    """Not even an empty file."""
    check_writable(tmp_path / "report.json")
    assert list(tmp_path.iterdir()) == []


def test_numbers_that_are_not_finite_are_strings():
    """Strict JSON has no Infinity; other tools refuse it."""
    text = to_json_text({"a": math.inf, "b": [-math.inf, math.nan], "c": (1.5,)})
    assert json.loads(text, parse_constant=pytest.fail) == {
        "a": "inf",
        "b": ["-inf", "nan"],
        "c": [1.5],
    }
