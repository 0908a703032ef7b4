"""A divergence is told and kept as soon as it is found; shrinking it is what Ctrl-C may lose."""

import pytest

from kvfuzz.case.counterexample import read
from kvfuzz.search import findings
from kvfuzz.search.hunt import fuzz
from kvfuzz.search.replay import replay

NAME = "tests.subjects.models:ForgetsOnDecode"


def hunt(folder, **settings):
    return fuzz(NAME, seed=0, locate=False, folder=folder, **settings)


def test_a_divergence_is_announced_before_it_is_shrunk(tmp_path):
    """As it was drawn, in a file that replays; the smaller case takes its place."""
    seen = []

    def announce(first):
        seen.append(first)
        assert replay(first.path).verdict == first.failure.verdict
        assert [*tmp_path.glob("*.json")] == [first.path]

    done = hunt(tmp_path, announce=announce)
    (first,) = seen
    assert (first.verdict, first.failure.passes, first.failure.done) == ("diverged", 0, False)
    assert (first.cases, first.seed) == (done.cases, 0)
    assert done.failure.case.length < first.failure.case.length
    assert [*tmp_path.glob("*.json")] == [done.path]


def test_the_same_divergence_is_announced_with_several_workers(tmp_path):
    """They find it, and the main process shrinks it."""
    seen = []
    one, two = (hunt(tmp_path, announce=seen.append, workers=workers) for workers in (1, 2))
    assert seen[0].failure == seen[1].failure
    assert one.failure == two.failure


def test_an_interrupt_while_it_is_shrunk_keeps_the_case(tmp_path):
    """As it was announced."""

    def interrupt(first):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        hunt(tmp_path, announce=interrupt)
    (kept,) = tmp_path.glob("*.json")
    assert replay(kept).verdict.diverged


def test_an_interrupt_keeps_the_smallest_case_so_far(run, tmp_path, monkeypatch):
    """Its file takes the place of the first one, and the message names it."""
    seen, judged = [], []
    real = findings.judge_like

    def interrupt(*given):
        if any(verdict.diverged for verdict in judged):
            raise KeyboardInterrupt
        judged.append(real(*given))
        return judged[-1]

    monkeypatch.setattr(findings, "judge_like", interrupt)
    code, _, err = run("fuzz", NAME, "--seed", 0, "--no-locate", "--folder", tmp_path)
    assert code == 130
    (kept,) = tmp_path.glob("*.json")
    assert err.endswith(f"kvfuzz: interrupted: the smallest case so far is kept in {kept}\n")
    monkeypatch.setattr(findings, "judge_like", real)
    hunt(tmp_path / "again", announce=seen.append)
    assert read(kept).case.length < seen[0].failure.case.length
    assert replay(kept).verdict.diverged


def test_a_file_that_was_there_before_stays(tmp_path):
    """It is somebody's regression test, though it holds the case that is found again."""
    drawn = hunt(tmp_path, shrink_passes=0).path
    small = hunt(tmp_path).path
    assert drawn != small
    assert {*tmp_path.glob("*.json")} == {drawn, small}


def test_the_command_announces_on_standard_error(run, tmp_path):
    """The report on standard output is that of the small case alone."""
    code, out, err = run("fuzz", NAME, "--seed", 0, "--no-locate", "--folder", tmp_path)
    assert code == 1
    (kept,) = tmp_path.glob("*.json")
    headline, again = err.splitlines()
    assert headline.startswith("DIVERGED at step ")
    assert "of seed 0" in headline
    assert again.startswith("  kvfuzz replay ")
    assert again.endswith("now it is made small ...")
    assert out.count("DIVERGED") == 1
    assert kept.name in out
    assert kept.name not in err
