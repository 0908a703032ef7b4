"""What the documents say is so: commands, code, tables."""

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from kvfuzz.cli.main import cli
from mutants.library.registry import library
from mutants.report.document import table

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text()


def blocks(text, language):
    """The fenced blocks of `language` in a Markdown text."""
    return re.findall(rf"^```{language}\n(.*?)^```", text, re.DOTALL | re.MULTILINE)


def test_the_first_screen_holds_the_two_commands():
    """One runs the main job and ends with the report, one the tests; both set everything up."""
    job, tests, *_ = blocks("\n".join(README.splitlines()[:30]), "sh")
    for command in (job, tests):
        assert command.startswith("python3 -m venv .venv && .venv/bin/pip install")
        assert "-c constraints.txt" in command
    assert job.rstrip().endswith("kvfuzz score zoo --html kvfuzz-report.html")
    assert "pytest" in tests


def run_ci(folder, readme):
    """Run a copy of `.ci/run` beside a README of the test's own."""
    (folder / ".ci").mkdir(exist_ok=True)
    shutil.copy(ROOT / ".ci" / "run", folder / ".ci" / "run")
    (folder / "README.md").write_text(readme)
    return subprocess.run(
        ["bash", str(folder / ".ci" / "run")], capture_output=True, text=True, check=False
    )


def test_ci_runs_the_readmes_test_command(tmp_path):
    """Taken from the README, so that they cannot part; what fails there fails here."""
    command = next(b for b in blocks(README, "sh") if "pytest" in b)
    done = run_ci(tmp_path, README.replace(command, "echo it ran\n"))
    assert (done.returncode, done.stdout) == (0, "+ echo it ran\nit ran\n")
    assert run_ci(tmp_path, README.replace(command, "exit 7\n")).returncode == 7
    assert run_ci(tmp_path, "nothing").returncode == 1


def test_the_readmes_example_diverges_as_printed(tmp_path):
    """The code is run by the command beside it, and gives the lines beside that."""
    code = next(b for b in blocks(README, "python") if b.startswith("# my_decoder.py"))
    (tmp_path / "my_decoder.py").write_text(code)
    session = blocks(README, "console")[0].splitlines()
    arguments = session[0].removeprefix("$ kvfuzz ").split()
    done = subprocess.run(
        [sys.executable, "-m", "kvfuzz.cli.main", *arguments],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        check=False,
    )
    assert done.returncode == 1, done.stderr
    printed = done.stdout.splitlines()[: len(session) - 1]
    assert [rounded(line) for line in printed] == [rounded(line) for line in session[1:]]


def rounded(line):
    """Numbers to two digits, since the last ones depend on the build."""
    return re.sub(r"\d+\.\d+(e[+-]\d+)?", lambda m: f"{float(m[0]):.1g}", line)


def test_the_readmes_test_is_a_test(tmp_path):
    """It fails on the faulty decoder, through the installed plugin."""
    code = next(b for b in blocks(README, "python") if b.startswith("# my_decoder.py"))
    test = next(b for b in blocks(README, "python") if "assert_agrees" in b)
    (tmp_path / "my_decoder.py").write_text(code)
    (tmp_path / "test_mine.py").write_text(test)
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "."],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        check=False,
    )
    assert done.returncode == 1
    assert "DIVERGED at step 2 of 2 (decode)" in done.stdout


def test_every_command_is_in_the_readme_and_every_one_there_exists():
    """`kvfuzz NAME` in a code span or a block names a command."""
    import click

    known = set(cli.list_commands(click.Context(cli)))
    named = set(re.findall(r"(?:^|`|\$ |/)kvfuzz (\w+)", README, re.MULTILINE))
    assert named == known


def test_every_link_between_documents_leads_somewhere():
    """Relative links only; the others are not ours to test."""
    for path in [*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md")]:
        for target in re.findall(r"\]\(([^)#]+)[^)]*\)", path.read_text()):
            if not target.startswith("http"):
                assert (path.parent / target).exists(), f"{path.name} -> {target}"


def test_the_table_of_mutants_is_that_of_the_library():
    """Generated from the registry: `python -m mutants.report.document > docs/mutants.md`."""
    assert (ROOT / "docs" / "mutants.md").read_text() == table(list(library().values()))


@pytest.mark.parametrize("name", ["README.md", "CHANGELOG.md"])
def test_the_number_of_mutants_is_not_stale(name):
    """Where a document counts the faults, it counts right."""
    scored = sum(not m.is_control for m in library().values())
    for count in re.findall(r"(\d+) faults", (ROOT / name).read_text()):
        assert int(count) == scored


def test_tox_has_the_environments_that_contributing_names():
    """Tests, lint, typing, fuzz, score, coverage and the others."""
    tox = (ROOT / "tox.ini").read_text()
    for name in (
        "lint",
        "typing",
        "coverage",
        "audit",
        "fuzz",
        "score",
        "gate",
        "nightly",
        "shard",
        "merge",
        "campaigns",
        "transformers457",
        "museum",
        "clean",
        "locate",
    ):
        assert f"[testenv:{name}]" in tox
        assert f"`{name}`" in (ROOT / "CONTRIBUTING.md").read_text()
