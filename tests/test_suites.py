"""The suites that kvfuzz ships, as pytest and xdist run them."""

import os
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest

ROOT = Path(__file__).parents[1]


def pytest_run(folder, *arguments):
    """Run pytest in a process of its own, with the tests' subjects importable."""
    return subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *arguments],
        capture_output=True,
        text=True,
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"},
        check=False,
    )


def test_the_score_as_tests_with_junit(tmp_path):
    """One test per mutant, in parallel, each with its state and site in the JUnit file."""
    done = pytest_run(
        tmp_path, "--pyargs", "mutants.suite", "-n", "2", "--kvfuzz-seed", "1",
        "--kvfuzz-examples", "20", "--junitxml", "score.xml", "-k", "skips or baseline or placebo",
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    cases = ElementTree.parse(tmp_path / "score.xml").iter("testcase")
    properties = {
        case.get("name"): {p.get("name"): p.get("value") for p in case.iter("property")}
        for case in cases
    }
    killed = properties["test_mutant_is_killed[norm.skips_before_attention]"]
    assert (killed["state"], killed["site"]) == ("killed", "0.norm")
    assert "test_baseline_agrees" in properties
    assert sum(name.startswith("test_placebo_survives") for name in properties) == 4


def test_a_mutant_that_survives_is_a_failed_test(tmp_path):
    """One case is short, and does not show what happens in long rows."""
    done = pytest_run(
        tmp_path,
        *("--pyargs", "mutants.suite", "--kvfuzz-examples", "1"),
        *("-k", "long_rows.evicts_beyond_its_budget"),
    )
    assert done.returncode == 1
    assert "long_rows.evicts_beyond_its_budget is survived" in done.stdout


def test_the_properties_of_a_right_and_a_wrong_subject(tmp_path):
    """The suite passes on the one, and fails on the other with the whole message."""
    common = ("--pyargs", "kvfuzz.suite", "--kvfuzz-examples", "20")
    right = pytest_run(tmp_path, *common, "--kvfuzz-subject", "tests.subjects.models:Summing")
    assert right.returncode == 0, right.stdout + right.stderr
    wrong = pytest_run(
        tmp_path, *common, "--kvfuzz-subject", "tests.subjects.models:ForgetsOnDecode"
    )
    assert wrong.returncode == 1
    assert "DIVERGED at step 2 of 2 (decode)" in wrong.stdout
    assert list((tmp_path / ".kvfuzz").glob("*.json"))


def test_all_workers_draw_under_one_seed(tmp_path):
    """A fresh seed is chosen once, printed, and handed to every worker."""
    (tmp_path / "test_seed.py").write_text(
        "import pytest\n"
        "@pytest.mark.parametrize('i', range(6))\n"
        "def test_seed(i, kvfuzz_seed, worker_id):\n"
        "    with open(f'{worker_id}.txt', 'a') as f:\n"
        "        f.write(f'{kvfuzz_seed}\\n')\n"
    )
    done = pytest_run(tmp_path, "-n", "2", "-v", "--kvfuzz-subject", "zoo")
    seeds = {line for path in tmp_path.glob("gw*.txt") for line in path.read_text().split()}
    assert len(list(tmp_path.glob("gw*.txt"))) == 2
    assert len(seeds) == 1
    assert f"seed {seeds.pop()}" in done.stdout


def test_a_bad_subject_is_a_usage_error(tmp_path):
    """Told once, not in one failure per test."""
    done = pytest_run(tmp_path, "--pyargs", "mutants.suite", "--kvfuzz-subject", "nosuch")
    assert done.returncode == 2
    assert "UsageError: unknown subject 'nosuch'" in done.stdout
    assert "1 error" in done.stdout


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--kvfuzz-subject", "zoo:rop"], "did you mean rope"),
        pytest.param(
            ["--kvfuzz-device", "nosuch"], "'nosuch'", marks=pytest.mark.full(reason="any option")
        ),
    ],
)
def test_a_bad_subject_of_the_properties_is_told_once(tmp_path, arguments, message):
    """As a failed collection; no test fails with a traceback."""
    done = pytest_run(tmp_path, "--pyargs", "kvfuzz.suite", *arguments)
    assert done.returncode == 2
    assert "UsageError: " in done.stdout
    assert message in done.stdout
    assert "1 error" in done.stdout
    assert "failed" not in done.stdout


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--kvfuzz-examples", "0"], "--kvfuzz-examples should be at least 1, got 0"),
        (["--kvfuzz-dtype", "float8"], "--kvfuzz-dtype 'float8' is not one of float64"),
    ],
)
def test_bad_options_are_refused_before_the_collection(tmp_path, arguments, message):
    """In one line, with pytest's exit code for it."""
    done = pytest_run(tmp_path, "--pyargs", "kvfuzz.suite", "-n", "2", *arguments)
    assert done.returncode == pytest.ExitCode.USAGE_ERROR
    assert done.stderr.strip().startswith(f"ERROR: {message}")
    assert done.stderr.strip().count("\n") == 0


@pytest.mark.parametrize(
    ("arguments", "shown"),
    [
        ([], False),
        pytest.param(["--kvfuzz-seed", "3"], True, marks=pytest.mark.full(reason="any option")),
        (["--pyargs", "kvfuzz.suite"], True),
        (["-o", "addopts=--kvfuzz-examples=3"], True),
    ],
)
def test_only_runs_that_ask_for_kvfuzz_have_its_header(tmp_path, arguments, shown):
    """The plugin is loaded in every project of an environment."""
    (tmp_path / "test_other.py").write_text("def test_other(): pass\n")
    done = pytest_run(tmp_path, "-v", "--collect-only", *arguments)
    assert done.returncode == 0, done.stdout + done.stderr
    assert ("kvfuzz: subject zoo, seed " in done.stdout) == shown
