"""Reports are written whole or not at all."""

import json
import math
import os
import stat
import threading

import pytest

from kvfuzz.case.files import check_writable, to_json_text, write_text
from kvfuzz.errors import UsageError


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


@pytest.mark.parametrize("place", ["report.json", "a/b/report.json"])
def test_checking_leaves_nothing_behind(tmp_path, place):
    """Neither an empty file nor a folder."""
    check_writable(tmp_path / place)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("exists", [True, False])
def test_a_link_stays_and_its_target_is_written(tmp_path, exists):
    """Also one whose target is yet to be made."""
    target = tmp_path / "elsewhere" / "real.json"
    if exists:
        target.parent.mkdir()
        target.write_text("old")
    link = tmp_path / "report.json"
    link.symlink_to(target)
    check_writable(link)
    assert target.parent.exists() == exists
    write_text(link, "new")
    assert link.is_symlink()
    assert target.read_text() == "new"


def test_links_in_a_circle_are_refused(tmp_path):
    """They stand for no file."""
    (tmp_path / "a").symlink_to(tmp_path / "b")
    (tmp_path / "b").symlink_to(tmp_path / "a")
    with pytest.raises(UsageError, match="cannot write .*symbolic links"):
        check_writable(tmp_path / "a")
    with pytest.raises(UsageError, match="cannot write .*symbolic links"):
        write_text(tmp_path / "a", "text")


@pytest.mark.parametrize("linked", [True, False])
def test_a_pipe_is_written_to_and_stays(tmp_path, linked):
    """Its reader gets the report."""
    pipe, link = tmp_path / "pipe", tmp_path / "link"
    os.mkfifo(pipe)
    link.symlink_to(pipe)
    path = link if linked else pipe
    check_writable(path)
    got = []
    reader = threading.Thread(target=lambda: got.append(pipe.read_text()), daemon=True)
    reader.start()
    write_text(path, "text")
    reader.join(10)
    assert got == ["text"]
    assert stat.S_ISFIFO(pipe.stat().st_mode)
    assert link.is_symlink()


def test_a_pipe_that_may_not_be_written_is_refused_before_the_work(tmp_path, monkeypatch):
    """As the system says of it; the superuser may write anywhere, so the answer is planted."""
    os.mkfifo(tmp_path / "pipe")
    monkeypatch.setattr(os, "access", lambda *_: False)
    with pytest.raises(UsageError, match="cannot write .*Permission denied"):
        check_writable(tmp_path / "pipe")


def test_numbers_that_are_not_finite_are_strings():
    """Strict JSON has no Infinity; other tools refuse it."""
    text = to_json_text({"a": math.inf, "b": [-math.inf, math.nan], "c": (1.5,)})
    assert json.loads(text, parse_constant=pytest.fail) == {
        "a": "inf",
        "b": ["-inf", "nan"],
        "c": [1.5],
    }
