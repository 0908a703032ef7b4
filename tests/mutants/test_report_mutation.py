"""The report for mutation testing viewers, held to the schema that their authors publish."""

from __future__ import annotations

import json
import math
import shutil
import subprocess
import tarfile
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from mutants.campaign.result import Score
from mutants.library.registry import find
from mutants.mutant import STATES
from mutants.report.mutation_report import STATUS, mutation_report
from tests.mutants.scores import made, no_score, one_of_each_state, result

RELEASE = "mutation-testing-report-schema@3.8.4"


@pytest.fixture(scope="module")
def schema(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """The published schema, from its npm package."""
    npm = shutil.which("npm")
    if npm is None:
        pytest.skip("npm is not installed: the schema comes from its npm package")
    folder = tmp_path_factory.mktemp("npm")
    done = subprocess.run(
        [npm, "pack", RELEASE], cwd=folder, capture_output=True, text=True, check=False, timeout=60
    )
    if done.returncode:
        pytest.skip(f"no network: npm pack {RELEASE} failed")
    with tarfile.open(next(folder.glob("*.tgz"))) as package:
        member = package.extractfile("package/src/mutation-testing-report-schema.json")
        assert member is not None
        published: dict[str, Any] = json.load(member)
    return published


def problems(report: dict[str, Any], schema: dict[str, Any]) -> list[str]:
    validator = jsonschema.Draft7Validator(schema)
    return [each.message for each in validator.iter_errors(report)]


def mutants_of(score: Score) -> dict[str, dict[str, Any]]:
    report = mutation_report(score)
    return {each["id"]: each for file in report["files"].values() for each in file["mutants"]}


def viewers_score(report: dict[str, Any]) -> float:
    """As mutation-testing-metrics computes it: detected are killed and timed out, and what is valid
    are these with those that survived and those without coverage."""
    states = [each["status"] for file in report["files"].values() for each in file["mutants"]]
    detected = sum(state in ("Killed", "Timeout") for state in states)
    valid = detected + sum(state in ("Survived", "NoCoverage") for state in states)
    return 100 * detected / valid if valid else math.nan


def test_the_command_writes_what_the_schema_asks_for(run, tmp_path, schema) -> None:
    """A real campaign, with kills, a survivor and an equivalent mutant."""
    ids = ("append.prepends", "crop.leaves_its_slots_in_sight", "reuse.reset_leaves_the_blocks")
    file = tmp_path / "mutation.json"
    code, _, _ = run(
        "score", "zoo", *(word for name in ids for word in ("--mutant", name)), "--examples", 20,
        "--seed", 1, "--mutation-report", file, "--folder", tmp_path, "--no-shrink",
    )  # fmt: skip
    written = json.loads(file.read_text())
    assert code == 1
    assert problems(written, schema) == []
    assert viewers_score(written) == 50.0


def test_the_schema_finds_what_is_wrong(schema) -> None:
    """The test above can fail: on a status of our own words, on a missing place."""
    report = mutation_report(made([result("append.prepends")]))
    assert problems(report, schema) == []
    mutant = report["files"]["mutants/library/faults/append.py"]["mutants"][0]
    mutant["status"] = "killed"
    assert problems(report, schema)
    del mutant["location"]
    assert "'location' is a required property" in problems(report, schema)


def test_every_state_is_valid_and_is_told_as_what_it_is(schema) -> None:
    """A viewer counts a timeout as detected, so that a mutant that timed out is told as survived,
    and only what was killed as killed."""
    score = one_of_each_state()
    assert problems(mutation_report(score), schema) == []
    told = mutants_of(score)
    status = {each.state: told[each.id]["status"] for each in score.results}
    expected = {
        "killed": "Killed",
        "survived": "Survived",
        "timed_out": "Survived",
        "unreached": "NoCoverage",
        "loud": "RuntimeError",
        "crashed": "RuntimeError",
        "invalid": "RuntimeError",
        "equivalent": "Ignored",
        "inapplicable": "Ignored",
    }
    assert status == {state: expected[state] for state in STATES}
    for each in score.results:
        if each.state != "killed":
            assert f"because of {each.state}" in told[each.id]["statusReason"]
    assert "timed out" in told[_id_of(score, "timed_out")]["statusReason"]
    assert "Timeout" not in STATUS.values()


def test_a_fault_that_could_not_be_put_in_does_not_compile() -> None:
    """It met no case, so that nothing raised at run time."""
    score = made([result("append.prepends", "invalid", ran=0, reason="there is no target")])
    assert mutants_of(score)["append.prepends"]["status"] == "CompileError"


@pytest.mark.parametrize(
    "results",
    [
        [result("append.prepends"), result("append.one_slot_late", "survived")],
        [result("append.prepends"), result("append.one_slot_late", "timed_out")],
        [result("append.prepends"), result("append.one_slot_late", "unreached")],
        [result("append.prepends"), result("append.one_slot_late", "loud")],
        [result("append.prepends"), result("append.one_slot_late", "equivalent")],
        [result("append.prepends", "survived")],
        list(one_of_each_state().results),
    ],
)
def test_a_viewer_computes_our_score(results) -> None:
    """Whatever the states."""
    score = made(results)
    assert viewers_score(mutation_report(score)) == score.percent


@pytest.fixture(scope="module")
def metrics(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the package by which viewers compute their metrics."""
    npm = shutil.which("npm")
    if npm is None or shutil.which("node") is None:
        pytest.skip("node and npm are not installed: the viewers' metrics are an npm package")
    folder = tmp_path_factory.mktemp("metrics")
    done = subprocess.run(
        [npm, "install", "--no-audit", "--no-fund", "mutation-testing-metrics@3.8.4"],
        cwd=folder, capture_output=True, text=True, check=False, timeout=60,
    )  # fmt: skip
    if done.returncode:
        pytest.skip("no network: npm install mutation-testing-metrics failed")
    return folder


@pytest.mark.parametrize("count", [1, 3])
def test_the_viewers_own_package_computes_our_score(metrics, count) -> None:
    """Not our reading of it alone."""
    score = one_of_each_state()
    score = made([*score.results, *(result(f"more.m{i}") for i in range(count))])
    (metrics / "report.json").write_text(json.dumps(mutation_report(score)))
    script = (
        "import { calculateMutationTestMetrics } from 'mutation-testing-metrics';"
        "import { readFileSync } from 'fs';"
        "const report = JSON.parse(readFileSync('report.json', 'utf8'));"
        "const { metrics } = calculateMutationTestMetrics(report).systemUnderTestMetrics;"
        "console.log(metrics.mutationScore, metrics.totalMutants);"
    )
    (metrics / "score.mjs").write_text(script)
    done = subprocess.run(
        ["node", "score.mjs"], cwd=metrics, capture_output=True, text=True, check=True
    )
    percent, total = map(float, done.stdout.split())
    assert percent == pytest.approx(score.percent, abs=1e-9)
    assert total == len(score.results)


def test_without_a_score_a_viewer_has_none(schema) -> None:
    """Not 100 % of nothing."""
    report = mutation_report(no_score("the unmutated zoo diverges"))
    assert problems(report, schema) == []
    assert math.isnan(viewers_score(report))


def test_a_mutant_stands_where_its_fault_does() -> None:
    """Lines and columns count from 1, and the end is exclusive: what lies between is the function,
    and nothing more."""
    report = mutation_report(made([result("append.prepends"), result("norm.normalises_twice")]))
    assert list(report["files"]) == [
        "mutants/library/faults/append.py",
        "mutants/library/faults/norm.py",
    ]
    for file in report["files"].values():
        lines = file["source"].splitlines()
        (mutant,) = file["mutants"]
        start, end = mutant["location"]["start"], mutant["location"]["end"]
        cut = lines[start["line"] - 1 : end["line"]]
        cut[-1] = cut[-1][: end["column"] - 1]
        cut[0] = cut[0][start["column"] - 1 :]
        assert "\n".join(cut) == find(mutant["id"]).source.rstrip("\n")
        assert end["column"] == len(lines[end["line"] - 1]) + 1


def test_what_killed_a_mutant_is_a_case() -> None:
    """By its number, which is the id of a test."""
    kills = (3, 8)
    score = made([result("append.prepends", killed_by=3, kills=kills, laws=("agreement",) * 2)])
    mutant = mutants_of(score)["append.prepends"]
    assert mutant["killedBy"] == ["3", "8"]
    assert mutant["testsCompleted"] == 10
    assert (
        mutant["statusReason"]
        == "case 3 breaks agreement, 20 \N{MULTIPLICATION SIGN} the tolerance"
    )
    tests = mutation_report(score)["testFiles"]["cases"]["tests"]
    assert [each["id"] for each in tests] == [str(number) for number in range(10)]


def test_a_mutant_that_left_the_library_is_still_told(schema) -> None:
    """At a place that says that there is no source."""
    report = mutation_report(made([result("gone.for_good", "survived")]))
    assert problems(report, schema) == []
    assert report["files"]["gone.txt"]["source"] == "(source not available)"


def _id_of(score: Score, state: str) -> str:
    return next(each.id for each in score.results if each.state == state)


def test_places_outside_the_present_folder_are_named_by_module(monkeypatch, tmp_path) -> None:
    """As a package that is installed: never by a path of this machine."""
    monkeypatch.chdir(tmp_path)
    assert list(mutation_report(made([result("append.prepends")]))["files"]) == [
        str(Path("mutants") / "library" / "faults" / "append.py")
    ]
