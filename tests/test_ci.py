"""The example workflows, and what tox runs in CI: they are parsed, and their commands are run."""

from __future__ import annotations

import ast
import configparser
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from kvfuzz.cli.main import main
from tests.workflows import SHAPES, run_workflow, workflow

ROOT = Path(__file__).parents[1]
RUN = {"gate.yml", "nightly.yml", "score.yml"}
"""The workflows whose commands are run here."""
SMALL = {"EXAMPLES": "3", "LIMIT": "--examples 20", "FAMILIES": "--operator crop"}
CORPUS = {"tests/corpus": ROOT / "tests" / "corpus"}


@pytest.mark.parametrize("file", sorted(SHAPES.glob("*.yml")), ids=lambda file: file.name)
def test_a_workflow_is_one(file) -> None:
    """It has a trigger, jobs on a runner, and steps that each run a command or use an action of a
    stated release; what a job needs is a job; every shard runs to its end."""
    flow = yaml.safe_load(file.read_text())
    assert flow["name"]
    assert flow[True]  # YAML 1.1 reads the key `on` as true
    for job in flow["jobs"].values():
        assert job["runs-on"] == "ubuntu-latest"
        assert job.get("needs", next(iter(flow["jobs"]))) in flow["jobs"]
        assert not job.get("strategy", {}).get("fail-fast", "strategy" in job)
        for step in job["steps"]:
            assert ("run" in step) != ("uses" in step)
            assert "name" in step or re.fullmatch(r"[\w-]+/[\w-]+@v\d+", step["uses"])


def test_every_workflow_is_run() -> None:
    """None is forgotten."""
    assert {file.name for file in SHAPES.glob("*.yml")} == RUN


@pytest.fixture(scope="module")
def baseline(tmp_path_factory) -> Path:
    """What `kvfuzz score --json` says at the gate's size, cut as docs/reports.md does it."""
    file = tmp_path_factory.mktemp("baseline") / "kvfuzz-baseline.json"
    main([
        "score", "zoo", "--seed", "1", "--examples", SMALL["EXAMPLES"], "--no-shrink",
        "--operator", "crop", "--json", str(file), "--folder", str(file.parent),
    ])  # fmt: skip
    report = json.loads(file.read_text())
    kept = {name: report[name] for name in ("schema", "kind", "subject", "score")}
    mutants = [{"id": each["id"], "state": each["state"]} for each in report["mutants"]]
    file.write_text(json.dumps({**kept, "mutants": mutants}))
    return file


def kvfuzz(*arguments: str, folder: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "kvfuzz.cli.main", *arguments],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), *sys.path])},
        capture_output=True,
        text=True,
        check=False,
    )


def test_the_gate_passes_on_what_its_baseline_knows_and_fails_on_what_is_new(
    baseline, tmp_path
) -> None:
    """Three cases leave survivors: known ones pass, and one that was killed fails the job."""
    files = {**CORPUS, "kvfuzz-baseline.json": baseline}
    (passed,) = run_workflow(workflow("gate.yml"), tmp_path / "passes", files, SMALL)
    assert passed.codes == {"replay what was found before": 0, "hunt": 0, "score": 0}, passed.output
    kept = {file.name for file in (tmp_path / "passes" / "artifacts" / "gate").iterdir()}
    assert kept == {"hunt.json", "score.json", "score.html", "junit.xml"}
    assert "no new survivor since kvfuzz-baseline.json" in passed.output
    assert "::error title=" in passed.output
    assert passed.summary.startswith("## ")

    report = json.loads(baseline.read_text())
    survivor = next(each for each in report["mutants"] if each["state"] == "survived")
    survivor["state"] = "killed"
    changed = tmp_path / "kvfuzz-baseline.json"
    changed.write_text(json.dumps(report))
    files["kvfuzz-baseline.json"] = changed
    (failed,) = run_workflow(steps_of("gate.yml", "score"), tmp_path / "fails", files, SMALL)
    assert failed.codes["score"] == 1
    assert f"NEW SURVIVOR {survivor['id']}: survived, killed in" in failed.output


def steps_of(name: str, *steps: str) -> dict[str, Any]:
    """The workflow called `name`, with these of its steps alone."""
    flow = workflow(name)
    for job in flow["jobs"].values():
        job["steps"] = [step for step in job["steps"] if step.get("name") in steps]
    return flow


def with_shards(count: int, name: str = "nightly.yml", job: str = "hunt") -> dict[str, Any]:
    """The workflow called `name`, with its `job` in fewer shards."""
    flow = workflow(name)
    flow["jobs"][job]["strategy"]["matrix"]["shard"] = list(range(1, count + 1))
    return flow


@pytest.mark.full(reason="the gate's runner once more; merging has quick tests of its own")
def test_the_score_in_shards_is_merged(tmp_path) -> None:
    """Each shard has its own part, with placebos and a canary; the merge has them all, and decides.
    Twenty cases leave a survivor of these families."""
    env = {**SMALL, "EXAMPLES": "20", "FAMILIES": "--operator dtype --operator given"}
    *shards, merged = run_workflow(with_shards(2, "score.yml", "score"), tmp_path, {}, env)
    assert [shard.codes for shard in shards] == [{"score": 0}] * 2, shards[0].output
    artifacts = tmp_path / "artifacts"
    parts = [json.loads((artifacts / f"shard-{k}" / f"shard-{k}.json").read_text()) for k in (1, 2)]
    whole = json.loads((artifacts / "score" / "score.json").read_text())
    ids = [[each["id"] for each in part["mutants"]] for part in parts]
    assert sorted(ids[0] + ids[1]) == whole["listed"] == [each["id"] for each in whole["mutants"]]
    assert all(part["canaries"][0]["state"] == "killed" for part in parts)
    assert merged.codes == {"merge": 0 if whole["verdict"] == "killed" else 1}, merged.output
    kept = {file.name for file in (artifacts / "score").iterdir() if file.is_file()}
    assert kept == {"score.json", "score.html", "mutation.json", "junit.xml", "badge.json"}


def test_the_nightly_hunt_gathers_what_its_shards_find(tmp_path) -> None:
    """Each shard hunts under a seed of its own, kept in its report. What both find is gathered with
    the files that it came from, and replays."""
    env = {**SMALL, "SUBJECT": "mutant:append.prepends"}
    *hunts, collected = run_workflow(with_shards(2), tmp_path, {}, env)
    assert [hunt.codes for hunt in hunts] == [{"hunt": 1}] * 2, hunts[0].output
    assert collected.codes == {"collect": 1}, collected.output
    artifacts = tmp_path / "artifacts"
    reports = [json.loads((artifacts / f"report-{k}" / "hunt.json").read_text()) for k in (1, 2)]
    assert len({report["seed"] for report in reports}) == 2
    assert all(re.fullmatch(r"\d/2 of seed \d+", report["shard"]) for report in reports)
    gathered = artifacts / "counterexamples"
    (one, *others) = json.loads((gathered / "collected.json").read_text())["counterexamples"]
    assert sum(len(each["files"]) for each in (one, *others)) == 2
    kept = list((gathered / "counterexamples").iterdir())
    assert len(kept) == 1 + len(others)
    assert kvfuzz("replay", str(kept[0]), folder=tmp_path).returncode == 1


def test_a_nightly_hunt_that_finds_nothing_is_green(tmp_path) -> None:
    """No folder, no artifact, no failure of the gathering job."""
    hunt, collected = run_workflow(with_shards(1), tmp_path, {}, SMALL)
    assert (hunt.codes, collected.codes) == ({"hunt": 0}, {"collect": 0})
    assert "no counterexample" in collected.output


@pytest.mark.parametrize(("name", "commands"), [("gate", 3), ("nightly", 1)])
def test_what_tox_runs_in_ci(name, commands, tmp_path, monkeypatch) -> None:
    """The commands of the environment, at small sizes, as tox would fill them in. Three cases leave
    survivors, so that the gate's score ends with 1."""
    config = configparser.RawConfigParser()
    config.read(ROOT / "tox.ini")
    known = {
        "/": "/",
        "tox_root": str(tmp_path),
        "env_tmp_dir": str(tmp_path),
        "posargs": {"gate": "--operator crop", "nightly": "--examples 20"}[name],
        "env:KVFUZZ_EXAMPLES:250": "3",
        "env:KVFUZZ_SECONDS:1200": "600",
        "env:KVFUZZ_SHARD:1/1": "2/3",
        "env:KVFUZZ_WORKERS:2": "1",
    }
    (tmp_path / "tests").mkdir()
    (tmp_path / "tests" / "corpus").symlink_to(ROOT / "tests" / "corpus")
    lines = config[f"testenv:{name}"]["commands"].strip().splitlines()
    assert len(lines) == commands
    monkeypatch.chdir(tmp_path)
    codes = []
    for line in lines:
        words = re.sub(r"\{([^}]+)\}", lambda found: known[found[1]], line).split()
        assert words.pop(0) == "kvfuzz"
        codes.append(main(words))
    assert codes == {"gate": [0, 0, 1], "nightly": [0]}[name]
    if name == "nightly":
        report = json.loads((tmp_path / ".tox" / "nightly" / "hunt.json").read_text())
        assert report["shard"].startswith("2/3 of seed ")


def unstated(source: str) -> list[int]:
    """The lines of `source` on which settings or a profile of Hypothesis do not say whether they
    derandomise."""
    calls = [node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Call)]
    return [
        call.lineno
        for call in calls
        if ast.unparse(call.func).rpartition(".")[2] in ("settings", "register_profile")
        and call.keywords
        and "derandomize" not in {keyword.arg for keyword in call.keywords}
    ]


def test_all_settings_state_derandomize() -> None:
    """Where Hypothesis sees CI it loads a profile that derandomises, which settings and profiles
    inherit: every shard would draw the same cases."""
    files = [*(ROOT / "kvfuzz").rglob("*.py"), *(ROOT / "mutants").rglob("*.py")]
    files.append(ROOT / "tests" / "conftest.py")
    assert {
        file.name: unstated(file.read_text()) for file in files if unstated(file.read_text())
    } == {}
    assert unstated("@hypothesis.settings(max_examples=3)\ndef f(): ...") == [1]
    assert unstated("settings.register_profile('ci', deadline=None)") == [1]
    assert unstated("settings.register_profile('ci', derandomize=True)") == []


def test_a_fresh_seed_is_fresh_in_ci(tmp_path) -> None:
    """Two hunts without a seed draw other cases, also as the same shard; under its seed each gives
    the same again."""
    script = (
        "from kvfuzz.search.hunt import fuzz; from kvfuzz.search.rounds import draw_cases;"
        "from kvfuzz.search.strategies import space_of; from kvfuzz.subjects.loading import load;"
        "space = space_of(load('zoo'));"
        "seeds = [fuzz('zoo', examples=1, shard=(1, 2)).seed for _ in range(2)];"
        "one, other = (repr(draw_cases(space, seed, 10)) for seed in seeds);"
        "print(one != other, one == repr(draw_cases(space, seeds[0], 10)))"
    )
    for variables in ({"CI": "true"}, {"GITHUB_ACTIONS": "true"}):
        done = subprocess.run(
            [sys.executable, "-c", script],
            env={**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), *sys.path]), **variables},
            cwd=tmp_path,
            capture_output=True,
            text=True,
            check=True,
        )
        assert done.stdout.split() == ["True", "True"]
