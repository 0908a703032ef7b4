"""Shrinking: bounded in forward passes, resumable, and the file is always whole."""

import json
import math
from dataclasses import replace

import pytest
from hypothesis import given

from kvfuzz.case.case import Case
from kvfuzz.case.counterexample import read
from kvfuzz.case.schedule import Crop, Fork, New, Padded, Reorder, Switch
from kvfuzz.case.verdict import Difference, Verdict
from kvfuzz.cli.main import main
from kvfuzz.errors import InvalidCase, UsageError
from kvfuzz.report.text import hunt_text
from kvfuzz.search import shrink_file as files
from kvfuzz.search.hunt import fuzz
from kvfuzz.search.reductions import REDUCTIONS
from kvfuzz.search.shrink import Bound, cut_versions, fails_alike, shrink
from kvfuzz.search.strategies import cases, space_of
from kvfuzz.subjects.loading import as_factory
from kvfuzz.subjects.run import count_passes, note_pass, run_cached, run_uncached
from tests.shrinking import smallest
from tests.subjects import models, raising
from tests.subjects.recomputing import Recomputes

NAME = "tests.subjects.models:ForgetsOnDecode"
SPACE = space_of(as_factory(Recomputes))
LARGE = Case(((4, 5, 6, 7, 8), (1, 2, 3, 4, 5), (9, 8, 7, 6, 5)), (2, 1, 1, 1), seed=7)


def weight(case):
    """What a reduction may not make larger: rows, columns, entries, and all numbers in them."""
    return case.batch * case.length + len(case.schedule)


@given(cases(SPACE))
def test_a_simpler_version_is_a_valid_case_and_another_one(case):
    """Whatever is drawn. It may fail or not; it never grows."""
    for reduction in REDUCTIONS:
        for version in reduction(case, SPACE):
            assert Case.from_json(json.loads(json.dumps(version.to_json()))) == version
            assert version != case
            assert weight(version) <= weight(case)


@given(cases(SPACE))
def test_shrinking_ends_whatever_fails(case):
    """With the smallest case there is, if everything fails."""
    found = smallest(case, lambda _: True, SPACE.offers)
    assert (found.tokens, found.schedule, found.given) == (((0,),), (1,), ())


def has(kind):
    return lambda case: any(isinstance(entry, kind) for entry in case.schedule)


@pytest.mark.parametrize(
    ("schedule", "needs", "found"),
    [
        ((5, Crop(3), 2), has(Crop), (1, Crop(1), 1)),
        ((2, Fork(), 1, Switch(0), 3, New(2), 1), has(Fork), (1, Fork(), 1)),
        ((2, New(2), 1, Fork(), 1, Switch(2), 3), lambda c: has(Switch)(c) and has(Fork)(c),
         (1, Fork(), Switch(0), 1)),
        ((3, Reorder((2, 2, 1)), 4), lambda c: len({*rows_of(c)}) < len(rows_of(c)),
         (1, Reorder((0, 0)), 1)),
        ((3, Reorder((2, 0)), 4), lambda c: len(rows_of(c)) > 1, (1, Reorder((1, 0)), 1)),
        ((Padded(4, "right", (0, 3, 1)), 3), has(Padded), (Padded(2, "left", (1,)),)),
    ],
)  # fmt: skip
def test_an_operation_shrinks_to_its_plainest_form(schedule, needs, found):
    """With as little around it as it needs, and a call at the end."""
    padded = isinstance(schedule[0], Padded)
    given_ = ("mask",) if padded else ()
    length = sum(e.size if isinstance(e, Padded) else e for e in schedule if not_operation(e))
    case = Case(tuple(tuple(range(row, row + length)) for row in (1, 2, 3)), schedule, given=given_)
    fed = smallest(case, lambda c: not_operation(c.schedule[-1]) and needs(c), {"mask"})
    assert fed.schedule == found


def not_operation(entry):
    return isinstance(entry, int | Padded)


def rows_of(case):
    return next((entry.rows for entry in case.schedule if isinstance(entry, Reorder)), ())


def test_settings_shrink_to_the_first_value():
    """All at once, or all but those that the failure needs."""
    space = replace(SPACE, choices={"layers": (2, 3, 1), "norm": ("a", "b")}, dtypes=("x", "y"))
    case = replace(LARGE, config={"layers": 1, "norm": "b", "own": 5}, dtype="float32")
    space = replace(space, dtypes=("float64", "float32"))

    def judged(one):
        return Verdict("diverged" if one.config["norm"] == "b" else "agreed")

    found = shrink(case, Verdict("diverged"), judged, space).case
    assert found.config == {"layers": 2, "norm": "b", "own": 5}
    assert (found.seed, found.dtype) == (0, "float64")


def test_only_the_same_kind_of_failure_counts():
    """A path that raises may turn out to give other logits, which is worse; not the other way."""
    wrong, raised = Verdict("diverged"), Verdict("diverged", error="no")
    rounds, law = Verdict("diverged", precision="bfloat16"), Verdict("diverged", law="frame")
    assert fails_alike(wrong, wrong)
    assert fails_alike(wrong, raised)
    assert not fails_alike(raised, wrong)
    for other in (rounds, law, Verdict("agreed")):
        assert not fails_alike(other, wrong)
        assert not fails_alike(wrong, other) or not other.diverged


def test_what_the_verdict_shows_to_be_needless_is_cut_first():
    """Rows that agree and steps after the divergence: two versions, the smaller one first."""
    first = Difference(2, "decode", 1, 3, 0, 1.0, 2.0, 1.0, 0.1, column=3)
    alone, all_rows = cut_versions(LARGE, Verdict("diverged", first=first))
    assert (alone.tokens, alone.schedule) == (((1, 2, 3, 4),), (2, 1, 1))
    assert (all_rows.batch, all_rows.schedule) == (3, (2, 1, 1))
    inside = Difference(0, "prefill", 0, 0, 0, 1.0, 2.0, 1.0, 0.1, column=0)
    assert cut_versions(LARGE, Verdict("diverged", first=inside))[0].schedule == (2,)
    padded = Case(((1, 2, 3),) * 2, (Padded(3, "left", (1, 0)),), given=("mask",))
    whole = cut_versions(padded, Verdict("diverged", first=replace(first, row=0, column=1)))
    assert [one.schedule for one in whole] == [(Padded(3, "left", (1,)),)]
    assert cut_versions(LARGE, Verdict("diverged")) == []
    # A reorder of the row that is left to one that is gone: the rows stay.
    moved = Case(((1, 2),) * 2, (1, Reorder((1,)), 1))
    kept = cut_versions(moved, Verdict("diverged", first=replace(first, row=1, column=1)))
    assert kept == []


def test_a_version_that_the_subject_refuses_does_not_fail():
    """The search goes on with the others."""

    def judged(one):
        if one.batch == 1:
            raise InvalidCase("needs two rows")
        return Verdict("diverged")

    found = shrink(LARGE, Verdict("diverged"), judged, SPACE)
    assert (found.case.batch, found.case.schedule, found.done) == (2, (1,), True)


def test_shrinking_is_bounded_in_forward_passes_and_says_so():
    """And goes on from where it stopped."""

    def judged(one):
        for _ in range(3):
            note_pass()
        return Verdict("diverged" if one.length > 1 else "agreed")

    stopped = shrink(LARGE, Verdict("diverged"), judged, SPACE, Bound(7))
    assert (stopped.done, stopped.passes) == (False, 9)
    assert weight(stopped.case) < weight(LARGE)
    none = shrink(LARGE, Verdict("diverged"), judged, SPACE, Bound(0))
    assert (none.case, none.done, none.passes) == (LARGE, False, 0)
    late = shrink(LARGE, Verdict("diverged"), judged, SPACE, Bound(None, seconds=1e-9))
    assert (late.case, late.done) == (LARGE, False)
    whole = shrink(stopped.case, stopped.verdict, judged, SPACE, Bound())
    assert (whole.case.schedule, whole.done) == ((2,), True)


def test_every_forward_pass_is_counted():
    """Of both paths, also where counts are nested."""
    subject, case = models.Summing(), Case(((1, 2, 3),), (1, 1, 1))
    with count_passes() as outer:
        run_uncached(subject, case.tokens)
        with count_passes() as inner:
            run_cached(subject, case)
    assert (outer.count, inner.count) == (4, 3)


def test_a_hunt_says_how_far_it_shrank():
    """With the command that goes on; the file holds the smallest case so far."""
    done = fuzz(models.ForgetsOnDecode, seed=0, locate=False)
    assert done.failure.done
    said = f"shrunk in {done.failure.passes} forward passes: no simpler version diverges"
    assert said in hunt_text(done)
    assert done.to_json()["shrunk"] is True
    short = fuzz(models.ForgetsOnDecode, seed=0, locate=False, shrink_passes=0)
    assert (short.failure.done, short.failure.passes) == (False, 0)
    assert "not fully shrunk after 0 forward passes" in hunt_text(short)
    with pytest.raises(UsageError, match="shrink_passes should be at least 0, got -1"):
        fuzz(models.ForgetsOnDecode, shrink_passes=-1)


def test_the_largest_difference_is_left_out_where_there_is_none():
    """A path that raises has no number, and a single case is not many."""
    text = hunt_text(fuzz(raising.RaisesOnChunks, seed=0, locate=False))
    assert "inf" not in text
    one = replace(fuzz(models.ForgetsOnDecode, seed=0, locate=False), cases=1)
    assert "  1 case, " in hunt_text(one)
    assert math.isfinite(one.worst_excess)


@pytest.fixture
def unshrunk(tmp_path):
    """The file of a counterexample that was not shrunk."""
    return fuzz(NAME, seed=3, shrink_passes=0, locate=False, folder=tmp_path).path


def test_a_file_is_shrunk_and_written_back(unshrunk, capsys):
    """With its verdict and location; what became smaller is printed. It still diverges: exit 1."""
    before = read(unshrunk).case
    assert main(["shrink", str(unshrunk)]) == 1
    said = capsys.readouterr().out
    after = read(unshrunk)
    assert (after.case.tokens, after.case.schedule, after.case.seed) == (((0, 0),), (1, 1), 0)
    assert after.verdict["first"]["position"] == 1
    assert after.located["file"]
    assert f"SHRUNK {unshrunk}: " in said
    assert f"tokens per row {before.length} to 2" in said
    assert "no simpler version diverges" in said
    assert "DIVERGED at step 2 of 2 (decode)" in said
    kept = unshrunk.read_text()
    assert main(["shrink", str(unshrunk)]) == 1
    assert f"MINIMAL {unshrunk}: no simpler version diverges (" in capsys.readouterr().out
    assert unshrunk.read_text() == kept


def test_a_file_can_be_shrunk_a_little_at_a_time(unshrunk, capsys):
    """Each time within its bound, which is said, with the command that goes on."""
    before = read(unshrunk).case
    assert main(["shrink", str(unshrunk), "--passes", "1"]) == 1
    said = capsys.readouterr().out
    assert "not fully shrunk after" in said
    assert f"kvfuzz shrink {unshrunk} goes on" in said
    assert weight(read(unshrunk).case) < weight(before)
    for _ in range(100):
        before = json.loads(unshrunk.read_text())["tried"]
        assert main(["shrink", str(unshrunk), "--passes", "1"]) == 1
        if "no simpler version diverges" in capsys.readouterr().out:
            break
        # Each call judges a version that none before it has judged.
        assert {*before} < {*json.loads(unshrunk.read_text())["tried"]}
    assert read(unshrunk).case.schedule == (1, 1)
    assert "tried" not in json.loads(unshrunk.read_text())
    assert read(unshrunk).located["file"]


def test_a_replay_says_how_to_shrink_what_is_not_fully_shrunk(unshrunk, capsys):
    """By the file; what agrees now, or is fully shrunk, has nothing to shrink."""
    hint = f"not fully shrunk: kvfuzz shrink {unshrunk} goes on"
    assert main(["replay", str(unshrunk)]) == 1
    assert hint in capsys.readouterr().out
    assert main(["replay", str(unshrunk), "--subject", "tests.subjects.models:Summing"]) == 0
    assert hint not in capsys.readouterr().out
    assert main(["shrink", str(unshrunk)]) == 1
    assert hint not in capsys.readouterr().out
    assert main(["replay", str(unshrunk)]) == 1
    assert hint not in capsys.readouterr().out


def test_the_time_bounds_it_too(unshrunk):
    """Without a bound of passes."""
    assert main(["shrink", str(unshrunk), "--seconds", "60"]) == 1
    assert read(unshrunk).case.schedule == (1, 1)


def test_an_interrupt_keeps_the_smallest_case_so_far(unshrunk, monkeypatch, capsys):
    """The file is whole, and the exit code that of any command that is interrupted."""
    before, real, asked = read(unshrunk).case, files.judge_like, []

    def interrupted(*given_):
        asked.append(given_)
        if len(asked) == 3:
            raise KeyboardInterrupt
        return real(*given_)

    monkeypatch.setattr(files, "judge_like", interrupted)
    assert main(["shrink", str(unshrunk)]) == 130
    said = capsys.readouterr()
    assert "interrupted after" in said.out
    assert "the smallest case so far is kept" in said.out
    assert "kvfuzz: interrupted" in said.err
    kept = read(unshrunk)
    assert weight(kept.case) < weight(before)
    assert kept.located is None
    assert main(["replay", str(unshrunk)]) == 1


def test_there_is_nothing_to_shrink_in_what_agrees(unshrunk, capsys):
    """A fixed decoder: exit 0, as of `replay`, and the file stays."""
    kept = unshrunk.read_text()
    assert main(["shrink", str(unshrunk), "--subject", "tests.subjects.models:Summing"]) == 0
    said = capsys.readouterr().out
    assert f"AGREED {unshrunk}" in said
    assert "nothing to shrink" in said
    assert unshrunk.read_text() == kept


@pytest.mark.parametrize("option", [("--passes", "0"), ("--seconds", "0"), ("--seconds", "nan")])
def test_a_bound_that_makes_no_sense_is_refused(unshrunk, option, capsys):
    """As everywhere, in one line."""
    assert main(["shrink", str(unshrunk), *option]) == 2
    assert main(["shrink", f"{unshrunk}.not"]) == 2
    assert len(capsys.readouterr().err.strip().splitlines()) == 2
