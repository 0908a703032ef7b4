"""Counterexamples in files: read with care, run again, on the same subject or another."""

import json
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kvfuzz.case.counterexample import files_in, read
from kvfuzz.errors import InvalidCounterexample, UsageError
from kvfuzz.search.hunt import fuzz
from kvfuzz.search.replay import exit_code, replay

WRONG = "tests.subjects.models:ForgetsOnDecode"
RIGHT = "tests.subjects.models:Summing"


@pytest.fixture
def saved(tmp_path):
    """A counterexample of a wrong decoder."""
    return fuzz(WRONG, seed=0, folder=tmp_path).path


def changed(path, **changes):
    data = json.loads(path.read_text())
    data.update(changes)
    path.write_text(json.dumps(data))
    return path


def test_it_still_diverges(saved):
    """The same place, the same difference."""
    item = replay(saved)
    assert item.verdict.diverged
    assert exit_code([item]) == 1


def test_it_agrees_on_another_subject(saved):
    """The same program on a decoder that is right."""
    item = replay(saved, subject=RIGHT)
    assert (item.subject, item.verdict.status, exit_code([item])) == (RIGHT, "agreed", 0)


def test_another_kind_of_subject_runs_the_same_tokens_with_its_own_settings(tmp_path):
    """A program found on the zoo is run on a decoder that knows none of the zoo's settings."""
    path = fuzz("mutant:append.drops_the_oldest", seed=0, folder=tmp_path).path
    data = json.loads(path.read_text())
    data["case"]["tokens"] = [[1, 2]]
    item = replay(changed(path, case=data["case"]), subject=WRONG)
    assert item.verdict.diverged
    assert replay(path, subject=RIGHT).verdict.status == "agreed"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "is empty"),
        ("  \n", "is empty"),
        ("{", "is not JSON"),
        ("[" * 100_000, "is not JSON"),
        ("[]", "is not a counterexample"),
        ("{}", "is not a counterexample"),
        ('{"kind": "kvfuzz counterexample"}', "has schema None, expected 1"),
        ('{"kind": "kvfuzz counterexample", "schema": 99}', "schema 99, newer .* upgrade kvfuzz"),
        ('{"kind": "kvfuzz counterexample", "schema": true}', "has schema True"),
        ('{"kind": "kvfuzz counterexample", "schema": 1}', "names no subject"),
        (
            '{"kind": "kvfuzz counterexample", "schema": 1, "subject": "zoo"}',
            "a case is a JSON object, got NoneType",
        ),
    ],
)
def test_a_file_that_is_no_counterexample_is_refused_in_one_line(tmp_path, text, message):
    """The file is named, and what is wrong with it."""
    path = tmp_path / "bad.json"
    path.write_text(text)
    with pytest.raises(InvalidCounterexample, match=message) as caught:
        read(path)
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)
    assert exit_code([replay(path)]) == 2


def test_bytes_that_are_no_text_are_refused(tmp_path):
    """A binary file is not JSON."""
    path = tmp_path / "bad.json"
    path.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(InvalidCounterexample, match="is not UTF-8 text"):
        read(path)


@settings(max_examples=50, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.sampled_from(["schema", "subject", "case", "verdict", "located", "device", "kind"]),
    st.none() | st.integers() | st.text(max_size=4) | st.lists(st.integers(), max_size=2),
)
def test_any_field_may_be_damaged(tmp_path, saved, key, value):
    """Whatever a field holds, there is a verdict or one line that says why not."""
    original = saved.read_text()
    item = replay(changed(saved, **{key: value}))
    saved.write_text(original)
    assert (item.verdict is None) != (item.error is None)
    assert "\n" not in (item.error or "")


def test_a_subject_that_is_gone_is_named(saved):
    """The file stays, and the way out is in the line."""
    item = replay(changed(saved, subject="gone.module:Model"))
    assert "there is no module 'gone'" in item.error
    assert exit_code([item]) == 2


def test_tokens_out_of_range_of_another_subject_are_named(saved):
    """A program of a larger vocabulary does not fit."""
    data = json.loads(saved.read_text())
    data["case"]["tokens"] = [[0, 50]]
    item = replay(changed(saved, case=data["case"]), subject=RIGHT)
    assert "token 50 at row 0, position 1 is out of range" in item.error


def test_a_directory_stands_for_its_counterexamples(saved, tmp_path):
    """In order of name; other files are left alone."""
    (tmp_path / "notes.txt").write_text("not one")
    other = tmp_path / "0.json"
    other.write_text(saved.read_text())
    assert files_in([tmp_path]) == [other, saved]


def test_a_path_that_is_not_there_is_refused(tmp_path):
    """By its name."""
    with pytest.raises(UsageError, match="there is no counterexample .*nosuch"):
        files_in([tmp_path / "nosuch"])


def test_nothing_to_replay_is_inconclusive():
    """A gate over an empty directory is not green."""
    assert exit_code([]) == 3


def test_one_file_that_cannot_be_run_outweighs_the_others(saved, tmp_path):
    """The others are run all the same."""
    bad = tmp_path / "bad.json"
    bad.write_text("")
    items = [replay(path) for path in files_in([tmp_path])]
    assert sorted(item.verdict is None for item in items) == [False, True]
    assert exit_code(items) == 2


CORPUS = Path(__file__).parent / "corpus"


@pytest.mark.parametrize("path", sorted(CORPUS.glob("*.json")), ids=lambda path: path.stem)
def test_the_corpus_agrees(path):
    """Programs of which each once told faulty caches from right ones; the zoo's are right."""
    item = replay(path)
    assert (item.error, item.verdict.status) == (None, "agreed")
