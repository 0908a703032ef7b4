"""A calibration: measured on clean cases, kept in a file, used and cited; never for float64."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from kvfuzz.case.case import Case
from kvfuzz.case.environment import environment_of
from kvfuzz.case.files import write_json
from kvfuzz.cli.main import main
from kvfuzz.errors import Diverges, Inconclusive, InvalidSubject, UsageError
from kvfuzz.oracle.reference import find_reference
from kvfuzz.search.calibrate import calibrate, default_path, with_calibration
from kvfuzz.search.hunt import fuzz
from kvfuzz.subjects.calibration import Calibration, Lane, from_json, read
from kvfuzz.subjects.loading import Options
from kvfuzz.subjects.zoo.decoder import Decoder
from mutants.campaign.score import score

NUMERICS = "tests.subjects.numerics"
COARSE = f"{NUMERICS}:Coarse"
BOUNDARIES = sorted((Path(__file__).parent / "boundaries").glob("*.json"))


@pytest.mark.parametrize(
    "path",
    [
        pytest.param(path, marks=pytest.mark.full(reason="one narrow dtype more"))
        if "bfloat16" in path.stem
        else path
        for path in BOUNDARIES
    ],
    ids=lambda path: path.stem,
)
def test_the_zoo_stays_within_its_frozen_boundaries(path):
    """The same cases come to at most half of what is allowed, and, on the build that they were
    frozen on, to what they came to then."""
    frozen = read(path)
    dtypes = {lane.dtype for lane in frozen.lanes} - {"float64"}
    options = Options(dtype=dtypes.pop()) if len(dtypes) == 1 else Options()
    again = calibrate(frozen.subject, examples=frozen.examples, seed=frozen.seed, options=options)
    for lane, before in zip(again.lanes, frozen.lanes, strict=True):
        assert lane.worst <= 0.5
        assert lane.leeway == before.leeway == 1
        here = environment_of("cpu")
        same_cases = here["hypothesis"] == frozen.environment["hypothesis"]
        if same_cases and frozen.misfit(frozen.subject, {}, here) is None:
            assert lane.worst == pytest.approx(before.worst, rel=0.01)


def test_boundaries_are_frozen_for_all_four_dtypes():
    """And say what they were measured on."""
    frozen = [read(path) for path in BOUNDARIES]
    assert {lane.dtype for each in frozen for lane in each.lanes} == {
        "float64",
        "float32",
        "bfloat16",
        "float16",
    }
    for each in frozen:
        assert {"torch", "backend", "device", "threads"} <= set(each.environment)


def test_a_boundary_can_fail():
    """A decoder that rounds a little more than the registered one is beyond half the bound."""
    found = calibrate(COARSE, examples=60, seed=0)
    assert found.lanes[1].worst > 0.5


def test_a_coarse_device_gets_a_leeway_outside_float64_and_is_then_agreed(tmp_path):
    """What is beyond the bound by a factor of less than four is allowed from then on, and cited."""
    path = tmp_path / "coarse.json"
    assert main(["calibrate", COARSE, "--seed", "0", "--out", str(path)]) == 0
    found = read(path)
    double, single = found.lanes
    assert (double.dtype, double.leeway, double.worst) == ("float64", 1, pytest.approx(0, abs=0.5))
    assert (single.dtype, single.leeway > 1) == ("float32", True)
    assert single.leeway / 2 < 2 * single.worst <= single.leeway
    assert {"case", "row", "position"} == set(single.where)
    plain = fuzz(COARSE, seed=0, examples=100)
    assert (plain.verdict, plain.calibration) == ("diverged", None)
    options = Options(calibration=found)
    with_it = fuzz(COARSE, seed=0, examples=100, options=options)
    assert (with_it.verdict, with_it.calibration) == ("agreed", str(path))


def test_fuzz_and_score_use_what_is_kept_in_the_folder_and_cite_it(tmp_path, capsys):
    """Without an option: the folder is where calibrate wrote it."""
    folder = ["--folder", str(tmp_path)]
    assert main(["calibrate", COARSE, "--seed", "0", *folder]) == 0
    kept = default_path(tmp_path, COARSE)
    assert f"written to {kept}" in capsys.readouterr().out
    assert main(["fuzz", COARSE, "--seed", "0", "--examples", "50", *folder]) == 0
    assert f"calibration: {kept}" in capsys.readouterr().out
    assert main(["calibrate", "zoo", "--seed", "0", "--examples", "20", *folder]) == 0
    few = ["--operator", "scale", "--examples", "40", "--no-shrink", "-n", "1"]
    assert main(["score", "zoo", *few, "--seed", "0", *folder]) == 0
    assert f"calibration: {default_path(tmp_path, 'zoo')}" in capsys.readouterr().out


def test_a_leeway_does_not_reach_float64():
    """Not even one that is passed by hand; in float32 it multiplies what is allowed."""
    for dtype, times in (("float64", 1), ("float32", 8)):
        case = Case(((1, 2, 3),), (1, 2), dtype=dtype)
        subject = Decoder(dtype=dtype)
        one, eight = (find_reference(subject, case, leeway=n).tolerance.allowed for n in (1.0, 8.0))
        assert torch.equal(times * one, eight)


def test_a_score_is_made_with_the_leeway_of_its_calibration():
    """A fault that is just caught in float32 no longer is where more is allowed."""
    lanes = (Lane("float32", 1, 1, 0, 3.9, {}, 8.0), Lane("float64", 1, 1, 0, 0.1, {}, 1.0))
    calibration = Calibration("zoo", 0, 1, {}, lanes, path="c.json")
    plain, loose = (
        score(
            "zoo",
            mutants=["scale.values_too_large"],
            options=options,
            seed=0,
            examples=60,
            shrink=False,
        )
        for options in (Options(dtype="float32"), Options("cpu", "float32", {}, calibration))
    )
    assert plain.results[0].excess == pytest.approx(8 * loose.results[0].excess) or (
        loose.results[0].killed_by != plain.results[0].killed_by
    )
    assert (plain.calibration, loose.calibration) == (None, "c.json")


def test_a_file_that_widens_float64_is_refused(tmp_path):
    """So is a leeway that calibrate would not give."""
    good = calibrate("zoo:rope", examples=10, seed=0)
    for dtype, leeway in (("float64", 2.0), ("float32", 64.0)):
        lanes = [
            replace(lane, leeway=leeway) if lane.dtype == dtype else lane for lane in good.lanes
        ]
        path = tmp_path / f"{dtype}.json"
        write_json(path, replace(good, lanes=tuple(lanes)).to_json())
        with pytest.raises(UsageError, match=f"{dtype} has a leeway of {leeway}"):
            read(path)


@pytest.mark.parametrize(
    ("subject", "error", "message"),
    [
        ("mutant:append.drops_the_oldest", Diverges, "diverges in float64; only a correct"),
        (f"{NUMERICS}:RoundsTo", Diverges, "diverges in float64"),
        (f"{NUMERICS}:TooCoarse", Diverges, "more than the 4 that the arithmetic of a device"),
        (f"{NUMERICS}:RoundsAside", Diverges, "diverges in float64"),
        ("tests.subjects.raising:NanInBoth", InvalidSubject, "it does not run in float64"),
        ("tests.subjects.out_of_reach:EXTERNAL", InvalidSubject, "it does not run in float64"),
    ],
)
def test_what_is_not_known_to_be_right_is_not_calibrated(subject, error, message, tmp_path):
    """A leeway for a fault would hide it for good."""
    with pytest.raises(error, match=message):
        calibrate(subject, examples=60, seed=0)
    assert main(["calibrate", subject, "--examples", "60", "--folder", str(tmp_path)]) == (
        error.exit_code
    )
    assert not default_path(tmp_path, subject).exists()


def test_a_calibration_of_another_build_or_subject_is_not_used(tmp_path):
    """Found in the folder it is passed over with a word; given by name it is refused."""
    found = calibrate("zoo:rope", examples=10, seed=0)
    elsewhere = replace(found, environment={**found.environment, "torch": "1.0"})
    kept = default_path(tmp_path, "zoo:rope")
    write_json(kept, elsewhere.to_json())
    options, unfit = with_calibration(Options(), "zoo:rope", tmp_path, None)
    assert options.calibration is None
    assert "is not used: it was made with torch 1.0, this is" in unfit
    with pytest.raises(UsageError, match="does not fit: it was made with torch 1.0"):
        with_calibration(Options(), "zoo:rope", tmp_path, kept)
    write_json(kept, found.to_json())
    with pytest.raises(UsageError, match="it is a calibration of zoo:rope, not of zoo"):
        with_calibration(Options(), "zoo", tmp_path, kept)
    assert with_calibration(Options(), "zoo:rope", tmp_path, None)[0].calibration == replace(
        found, path=str(kept)
    )


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "is not JSON"),
        ("[1]", "is not a calibration"),
        ('{"kind": "kvfuzz calibration", "schema": 2}', "has schema 2, this kvfuzz reads 1"),
        ('{"kind": "kvfuzz calibration", "schema": 1}', "is not a calibration: KeyError: 'lanes'"),
        (
            '{"kind": "kvfuzz calibration", "schema": 1, "lanes": []}',
            "it should have one lane for each dtype",
        ),
    ],
)
def test_a_file_that_is_no_calibration_is_refused_in_one_line(text, message, tmp_path):
    """With its name."""
    path = tmp_path / "c.json"
    path.write_text(text)
    with pytest.raises(UsageError, match=message):
        read(path)
    with pytest.raises(UsageError, match="cannot read"):
        read(tmp_path / "missing.json")


def test_a_file_with_a_number_that_is_none_is_refused(tmp_path):
    """Python writes Infinity into JSON, and reads it."""
    data = {**calibrate("zoo:rope", examples=10, seed=0).to_json(), "seed": float("inf")}
    path = tmp_path / "c.json"
    path.write_text(json.dumps(data))
    with pytest.raises(UsageError, match="is not a calibration: OverflowError"):
        read(path)


def test_a_calibration_with_other_settings_does_not_fit(tmp_path):
    """What was measured of one window says nothing about another."""
    found = calibrate("zoo:rope", examples=10, seed=0, options=Options(config={"layers": 1}))
    kept = default_path(tmp_path, "zoo:rope")
    write_json(kept, found.to_json())
    options, unfit = with_calibration(Options(), "zoo:rope", tmp_path, None)
    assert options.calibration is None
    assert "it was made with the settings {'layers': 1}, these are {}" in unfit
    assert with_calibration(Options(config={"layers": 1}), "zoo:rope", tmp_path, None)[1] is None


def test_few_cases_grant_no_leeway():
    """And cases that read no cache calibrate nothing."""
    with pytest.raises(Inconclusive, match="which takes 50 cases or more to grant, got 20"):
        calibrate(COARSE, examples=20, seed=0)
    with pytest.raises(Inconclusive, match="no case of .* could be compared"):
        calibrate("zoo:rope", examples=10, seed=0, options=Options(config={"max_length": 1}))


def test_the_same_seed_calibrates_alike():
    """And the record holds what it was measured with."""
    one, two = (calibrate("zoo:rope", examples=15, seed=3).to_json() for _ in range(2))
    assert one == two
    assert json.loads(json.dumps(one))["seed"] == 3


@pytest.mark.parametrize("dropped", [(), ("rows", "weak_rows"), ("positions", "weak_positions")])
def test_counts_of_positions_are_read_by_either_name(dropped):
    """A file of before has `rows`, one of now has both for one release."""
    made = Calibration("zoo", 0, 9, {}, (Lane("float32", 9, 70, 5, 0.1, {}, 1.0),), path="c.json")
    data = made.to_json()
    assert data["lanes"][0]["rows"] == data["lanes"][0]["positions"] == 70
    data["lanes"] = [{k: v for k, v in data["lanes"][0].items() if k not in dropped}]
    assert from_json(data, "c.json") == made
