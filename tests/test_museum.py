"""The museum's collection says what can be installed and hunted, and its script what was seen."""

from __future__ import annotations

import importlib.util
import json
import re
import sys
from pathlib import Path

import pytest

PATH = Path(__file__).parents[1] / "benchmarks" / "museum.py"


@pytest.fixture(scope="module")
def museum():
    """The script, as a module."""
    spec = importlib.util.spec_from_file_location("kvfuzz_museum", PATH)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # its dataclass looks itself up
    spec.loader.exec_module(module)
    return module


def test_every_bug_can_be_hunted(museum):
    """It names releases that are there, a subject, and settings."""
    bugs, releases = museum.COLLECTION["bugs"], museum.COLLECTION["releases"]
    assert len({bug["slug"] for bug in bugs}) == len(bugs) == 23
    for bug in bugs:
        assert bug["buggy"] in releases
        assert bug["fixed"] is None or bug["fixed"] in releases
        assert bug["subject"].partition(":")[0] in ("transformers", "mlx", "transformer_lens")
        assert isinstance(bug["config"], dict)
        assert bug["what"]
        for report in bug["reports"]:
            assert re.fullmatch(r"[\w-]+/[\w-]+#\d+", report)


def test_every_release_is_pinned_and_used(museum):
    """Its own package has the release in its pin."""
    used = {bug[which] for bug in museum.COLLECTION["bugs"] for which in ("buggy", "fixed")}
    assert used - {None} == set(museum.COLLECTION["releases"])
    for name, release in museum.COLLECTION["releases"].items():
        assert name.replace(" ", "==") == release["pins"][0]


def test_what_counts_as_seen(museum):
    """A divergence that the fixed release does not have; where there is none, any."""
    verdicts = [("diverged", "agreed"), ("diverged", "diverged"), ("agreed", None), ("error", None)]
    seen = [
        museum.Exhibit("a", "mask", "x 1", "x 2", verdict=verdict, replay=replay).seen
        for verdict, replay in verdicts
    ]
    assert seen == [True, False, False, False]
    assert museum.Exhibit("a", "mask", "x 1", None, verdict="diverged").seen


def test_a_program_in_words(museum):
    """Rows, schedule, the settings that were drawn, and the law if it is not agreement."""
    case = {
        "tokens": [[1, 2, 3]],
        "schedule": [1, ["crop", 2], 2],
        "config": {"attn": "sdpa", "cache": "static"},
        "given": ["mask"],
    }
    for law, told in (("agreement", ""), ("generation", " generation")):
        found = {"found": {"case": case, "verdict": {"law": law}}}
        assert museum.program(found) == f"1 x [1, crop 2, 2] sdpa static mask{told}"
    assert museum.program({"verdict": "agreed", "found": None}) == ""


def test_a_command_that_fails_is_told(museum, tmp_path):
    """An error of one bug is its note, and does not end the visit."""
    found = museum.kvfuzz(["fuzz", "zo"], tmp_path, tmp_path / "out.json")
    assert found["verdict"] == "error"
    assert "unknown subject 'zo'" in found["problems"][0]


def test_the_table_has_a_row_for_each_bug(museum):
    """And what is not seen is told below it."""
    found = [museum.Exhibit("one", "mask", "x 1", "x 2", verdict="agreed", cases=200)]
    assert museum.table(found).row_count == 1
    lines = list(museum.remarks(found))
    assert lines[0] == "0 of 1 seen"
    assert lines[1] == "not seen: one (agreed, replay None)"


def test_the_collection_is_plain_data():
    """It is one object, as JSON."""
    data = json.loads(PATH.with_suffix(".json").read_text(encoding="utf-8"))
    assert set(data) == {"beside", "releases", "bugs"}
