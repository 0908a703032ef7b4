"""Counterexamples of several hunts, gathered: one of each program, and none lost."""

import json

import pytest

from kvfuzz.case.case import Case
from kvfuzz.case.counterexample import Counterexample, read
from kvfuzz.case.schedule import Crop
from kvfuzz.search.collect import collect, program_of
from kvfuzz.search.hunt import fuzz

LOCATED = {"site": "0.cache", "step": 1, "position": 1}


def found(tokens=((1, 2),), schedule=(1, 1), subject="zoo", law="agreement", **changes):
    """A counterexample of the tests' own."""
    located = changes.pop("located", LOCATED)
    case = Case(tokens, schedule, **changes)
    return Counterexample(subject, case, {"status": "diverged", "law": law}, located)


@pytest.mark.parametrize(
    "other",
    [
        found(((9, 8),)),
        found(seed=5),
        found(dtype="float64"),
        found(config={"layers": 3}),
        found(located={**LOCATED, "position": 0}),
    ],
)
def test_tokens_weights_and_settings_are_no_part_of_a_program(other):
    """Shards find the same fault with others."""
    assert program_of(other) == program_of(found())


@pytest.mark.parametrize(
    "other",
    [
        found(((1, 2, 3),), (1, 2)),
        found(((1, 2, 3),), (1, Crop(1), 1, 1)),
        found(((1, 2), (3, 4))),
        found(given=("mask",)),
        found(subject="zoo:rope"),
        found(law="causality"),
        found(located={**LOCATED, "site": "1.cache"}),
        found(located=None),
    ],
)
def test_what_may_be_another_fault_is_another_program(other):
    """Rather two of one fault than one of two."""
    assert program_of(other) != program_of(found())


def test_one_of_each_program_is_written_the_simplest(tmp_path):
    """It can be replayed, and says which files it stands for; the most frequent comes first."""
    one, two, out = (tmp_path / name for name in ("one", "one/in it", "out"))
    larger = found(((1, 2, 3),), (1, Crop(1), 1, 1))
    other = found(((9, 9, 9),), (1, Crop(1), 1, 1), seed=4)
    paths = [found(config={"layers": 2}).save(one), larger.save(one), found(seed=3).save(two)]
    paths.append(other.save(two))
    paths.append(found(seed=9, config={"layers": 3}).save(one))
    collected, unread = collect([one], out)
    assert unread == []
    assert [len(each.files) for each in collected] == [3, 2]
    assert sorted(file for each in collected for file in each.files) == sorted(paths)
    assert {each.path.parent for each in collected} == {out}
    assert len(list(out.iterdir())) == 2
    for each in collected:
        assert read(each.path).digest == each.found.digest
        assert each.found.case.config == {}


def test_two_shards_of_one_fault_come_to_one_counterexample(tmp_path):
    """Real hunts with seeds of their own. Two tokens fed singly show this fault under each."""
    hunts = [
        fuzz(
            "mutant:position.restarts_at_each_chunk", seed=3, shard=(k, 2), folder=tmp_path / str(k)
        )
        for k in (1, 2)
    ]
    assert {hunt.verdict for hunt in hunts} == {"diverged"}
    assert hunts[0].seed != hunts[1].seed
    collected, _ = collect([tmp_path / "1", tmp_path / "2"], tmp_path / "out")
    assert [len(each.files) for each in collected] == [2]


def test_the_command_prints_a_table_and_writes_it(run, tmp_path):
    """Exit code 1: there are divergences."""
    found(given=("mask",)).save(tmp_path / "a")
    file = tmp_path / "collected.json"
    code, out, error = run("collect", tmp_path / "a", "--out", tmp_path / "out", "--json", file)
    assert (code, error) == (1, "")
    (path,) = (tmp_path / "out").iterdir()
    assert out.splitlines() == [
        "files  program",
        f"    1  zoo: [1, 1], 1 row, given mask: agreement, first at 0.cache: {path}",
    ]
    (written,) = json.loads(file.read_text())["counterexamples"]
    assert (written["path"], written["site"]) == (str(path), "0.cache")


def test_no_counterexample_is_told(run, tmp_path):
    """Exit code 0: nothing was found, and nothing is written."""
    (tmp_path / "empty").mkdir()
    code, out, _ = run("collect", tmp_path / "empty", "--out", tmp_path / "out")
    assert (code, out) == (0, "no counterexample\n")
    assert not (tmp_path / "out").exists()


def test_a_broken_file_costs_no_other(run, tmp_path):
    """It is told in one line, with exit code 2, and the others are collected."""
    found().save(tmp_path / "a")
    (tmp_path / "a" / "broken.json").write_text("{")
    code, out, error = run("collect", tmp_path / "a", "--out", tmp_path / "out")
    assert code == 2
    assert error.startswith(f"kvfuzz: {tmp_path / 'a' / 'broken.json'} is not JSON")
    assert error.count("\n") == 1
    assert len(list((tmp_path / "out").iterdir())) == 1
    assert "[1, 1]" in out


def test_a_folder_that_is_not_there_is_a_usage_error(run, tmp_path):
    """Not an empty one: its shard may never have run."""
    code, out, error = run("collect", tmp_path / "none", "--out", tmp_path / "out")
    assert (code, out) == (2, "")
    assert error == f"kvfuzz: there is no counterexample {tmp_path / 'none'}\n"
