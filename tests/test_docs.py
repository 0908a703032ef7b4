"""The documents are true: their commands, code, links, tables and names."""

import configparser
import importlib.metadata
import json
import re
import shlex
import shutil
import subprocess
import sys
from dataclasses import fields
from pathlib import Path
from typing import get_args

import click
import pytest

from kvfuzz.case.case import GIVEN, KEEP
from kvfuzz.case.features import FEATURES, PADDED
from kvfuzz.case.verdict import Difference, Impact, Status, Verdict
from kvfuzz.cli.main import cli
from kvfuzz.localize.location import Divergence
from kvfuzz.oracle.laws import LAWS
from mutants.library.registry import library
from mutants.mutant import STATES
from mutants.report.document import table, with_laws
from tests.test_layers import KVFUZZ, MUTANTS

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text()
CONTRIBUTING = (ROOT / "CONTRIBUTING.md").read_text()
PAGES = {
    str(path.relative_to(ROOT)): path.read_text()
    for path in [*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md")]
}
PINNED = dict(re.findall(r"^([\w-]+)==(\S+)", (ROOT / "constraints.txt").read_text(), re.M))
FRAGMENT = "<!-- fragment -->\n"
"""Stands before a block of code that does not run on its own."""
SCREEN = 45


def blocks(text, language):
    """The fenced blocks of `language` in a Markdown text."""
    return re.findall(rf"^```{language}\n(.*?)^```", text, re.DOTALL | re.MULTILINE)


def every(language):
    """Every block of `language`, with the name of its page, as parameters of a test."""
    return [
        pytest.param(name, block, id=f"{name}-{number}")
        for name, text in sorted(PAGES.items())
        for number, block in enumerate(blocks(text, language))
        if FRAGMENT + f"```{language}\n{block}" not in text
    ]


def test_the_first_screen_shows_the_commands_and_a_finding():
    """A transformers type, a checkpoint, a class; the finding ends with the advice."""
    first = "\n".join(README.splitlines()[:SCREEN])
    assert len(re.findall(r"^kvfuzz fuzz ", blocks(first, "sh")[0], re.M)) == 3
    assert "look first at:" in blocks(first, "console")[0]
    assert "**Not for**" in first


def test_the_first_screen_and_a_half_holds_the_two_set_up_commands():
    """One runs the main job and ends with the report, one runs the tests."""
    _, job, tests = blocks("\n".join(README.splitlines()[: SCREEN * 3 // 2]), "sh")
    for command in (job, tests):
        assert command.startswith("python3 -m venv .venv && .venv/bin/pip install")
        assert "-c constraints.txt" in command
    assert "kvfuzz score zoo -n 2" in job
    assert job.rstrip().endswith("--html kvfuzz-report.html")
    assert "pytest" in tests


def run_ci(folder, readme):
    """Runs a copy of `.ci/run` next to a README of the test."""
    (folder / ".ci").mkdir(exist_ok=True)
    shutil.copy(ROOT / ".ci" / "run", folder / ".ci" / "run")
    (folder / "README.md").write_text(readme)
    return subprocess.run(
        ["bash", str(folder / ".ci" / "run")], capture_output=True, text=True, check=False
    )


def test_ci_runs_the_readmes_test_command(tmp_path):
    """It reads the command from the README, and fails if the command fails."""
    command = next(b for b in blocks(README, "sh") if "-m pytest" in b)
    done = run_ci(tmp_path, README.replace(command, "echo it ran\n"))
    assert (done.returncode, done.stdout) == (0, "+ echo it ran\nit ran\n")
    assert run_ci(tmp_path, README.replace(command, "exit 7\n")).returncode == 7
    assert run_ci(tmp_path, "nothing").returncode == 1


@pytest.mark.parametrize(("page", "session"), every("console"))
def test_a_session_prints_what_the_page_shows(tmp_path, monkeypatch, run, page, session):
    """Runs each `$ kvfuzz` command and compares the lines that the page shows: all of them, or the
    first ones if a line with "…" follows."""
    if "transformers:" in session and not has_pinned_transformers():
        pytest.skip("shows lines of the release of transformers in constraints.txt")
    write_files(page, tmp_path)
    monkeypatch.chdir(tmp_path)
    for part in session.split("$ kvfuzz ")[1:]:
        command, *shown = part.splitlines()
        files = [tmp_path / word for word in shlex.split(command) if word.startswith(".kvfuzz/")]
        if not all(file.exists() for file in files):
            pytest.skip("reads a file that no command of the session writes")
        code, out, error = run(*shlex.split(command))
        assert code in (0, 1), error
        printed = out.splitlines()
        if shown[-1].strip() == "…":
            shown.pop()
            assert len(printed) > len(shown)
            del printed[len(shown) :]
        assert_alike("\n".join(printed), "\n".join(shown))


def has_pinned_transformers():
    try:
        return importlib.metadata.version("transformers") == PINNED["transformers"]
    except importlib.metadata.PackageNotFoundError:
        return False


NUMBER = re.compile(r"\d+\.\d+(?:e[+-]?\d+)?|\d+e[+-]?\d+")


def assert_alike(printed, shown):
    """The same words, and decimals within a tenth, since they depend on the build of torch."""
    assert NUMBER.sub("#", printed) == NUMBER.sub("#", shown)
    numbers = [[float(number) for number in NUMBER.findall(text)] for text in (printed, shown)]
    assert numbers[0] == pytest.approx(numbers[1], rel=0.1), (printed, shown)


def write_files(page, folder):
    """Writes the blocks of `page` that begin with `# name.py` to these files."""
    for block in blocks(PAGES[page], "python"):
        if name := re.match(r"# (\w+\.py)\n", block):
            (folder / name[1]).write_text(block)


@pytest.mark.parametrize(("page", "code"), every("python"))
def test_code_runs(tmp_path, monkeypatch, page, code):
    """Each block runs on its own, next to the files that its page shows."""
    write_files(page, tmp_path)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    try:
        exec(compile(code, page, "exec"), {"__name__": "block"})
    finally:
        forget_modules_below(tmp_path)


def forget_modules_below(folder):
    """Lets another test import its own `my_decoder`."""
    for name, module in list(sys.modules.items()):
        if str(getattr(module, "__file__", None)).startswith(str(folder)):
            del sys.modules[name]


@pytest.mark.parametrize(("page", "data"), every("json"))
def test_json_is_json(page, data):
    """So that it can be copied into a file."""
    assert json.loads(data)


def commands_in(text):
    """Every `kvfuzz NAME ...` in a code span or at the start of a line of a shell block."""
    text = re.sub(rf"^{FRAGMENT}```.*?^```", "", text, flags=re.S | re.M)
    lines = "\n".join(block.replace("\\\n", " ") for block in blocks(text, "(?:sh|console)"))
    spans = re.findall(r"`kvfuzz (\w[^`]*)`", re.sub(r"^```.*?^```", "", text, flags=re.S | re.M))
    shell = re.findall(r"^(?:\$ |.*?&& \S*)?kvfuzz (\w[^#\n]*)", lines, re.M)
    chained = re.findall(r"/kvfuzz (\w[^#&\n]*)", lines)
    return [" ".join(found.split("&&")[0].split()) for found in [*spans, *shell, *chained]]


@pytest.mark.parametrize("page", sorted(PAGES))
def test_every_command_line_is_accepted(page):
    """Its command and its options exist; a word in capitals stands for any."""
    for line in commands_in(PAGES[page].split("### Removed")[0]):
        name, *arguments = shlex.split(line.replace("[", "").replace("]", ""))
        command = cli.get_command(click.Context(cli), name)
        assert command is not None, f"{page}: there is no kvfuzz {name}"
        known = {option for each in command.params for option in each.opts + each.secondary_opts}
        unknown = (
            {a.split("=")[0] for a in arguments if a.startswith("-") and not a.isupper()}
            - known
            - {"--help"}
        )
        assert not unknown, f"{page}: kvfuzz {line}: there is no {unknown}"


def test_the_command_line_test_can_fail():
    """On a shell block, after `&&`, and on a span."""
    text = "```sh\na && .venv/bin/kvfuzz fuz zoo && b\nkvfuzz gone x  # y\n```\n`kvfuzz odd --no`"
    assert {line.split()[0] for line in commands_in(text)} == {"fuz", "gone", "odd"}


def test_the_readme_names_every_command():
    """And no other."""
    named = {line.split()[0] for line in commands_in(README)}
    assert named == set(cli.list_commands(click.Context(cli)))


def test_the_readmes_test_is_a_test(tmp_path):
    """It fails on the faulty decoder, through the installed plugin."""
    write_files("README.md", tmp_path)
    test = next(b for b in blocks(README, "python") if "assert_agrees" in b)
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


def test_bugs_that_the_readme_claims_are_in_the_museum():
    """Each public report that it links, and the release that it names."""
    museum = json.loads((ROOT / "benchmarks" / "museum.json").read_text())
    reports = {report for bug in museum["bugs"] for report in bug["reports"]}
    claimed = re.findall(r"https://github\.com/([\w-]+/[\w-]+)/issues/(\d+)", README)
    assert claimed
    assert {f"{repository}#{number}" for repository, number in claimed} <= reports
    assert set(re.findall(r"transformers (\d[\d.]*\d)", README)) == {PINNED["transformers"]}


def test_every_link_leads_somewhere():
    """To a file, or to a heading of a page; links to other sites are not tested."""
    for page, text in PAGES.items():
        prose = re.sub(r"^```.*?^```", "", text, flags=re.S | re.M)
        for target, anchor in re.findall(r"\]\(([^)#]*)(?:#([^)]*))?\)", prose):
            if target.startswith("http"):
                continue
            path = (ROOT / page).parent / target if target else ROOT / page
            assert path.exists(), f"{page} -> {target}"
            if anchor:
                assert anchor in headings(path.read_text()), f"{page} -> {target}#{anchor}"


def headings(text):
    """The anchors that GitHub gives to the headings of a page."""
    titles = re.findall(r"^#+ (.*)$", text, re.M)
    return {re.sub(r"[^\w -]", "", title.lower()).replace(" ", "-") for title in titles}


def test_the_index_lists_every_page():
    """`docs/README.md` is where a reader looks."""
    index = PAGES["docs/README.md"]
    for path in (ROOT / "docs").glob("*.md"):
        assert path.name == "README.md" or f"({path.name})" in index, path.name


def test_the_table_of_mutants_is_that_of_the_library():
    """`tox -e lib` writes it."""
    assert (ROOT / "docs" / "mutants.md").read_text() == table(list(library().values()))


def test_the_table_of_laws_defines_each():
    """`tox -e lib` writes it."""
    page = PAGES["docs/programs.md"]
    assert with_laws(page) == page
    assert all(f"| {law} |" in page for law in LAWS[1:])


@pytest.mark.parametrize("page", ["README.md", "CHANGELOG.md", "CONTRIBUTING.md"])
def test_no_page_counts_the_mutants_by_hand(page):
    """A count would be wrong after the next mutant; `docs/mutants.md` is generated."""
    assert not re.findall(r"\d+ (?:\w+ )?(?:faults|mutants|operators)\b", PAGES[page])


def test_the_architecture_draws_the_rooms():
    """In the order of `tests/test_layers.py`, the top room first."""
    drawing = blocks(PAGES["docs/architecture.md"], "text")[0]
    cells = [line.split("│") for line in drawing.splitlines() if "│" in line]
    rooms = [cell[1].strip() for cell in cells]
    mutants = [cell[-3].strip() for cell in cells if len(cell) > 5]
    assert rooms == [room for room in reversed(KVFUZZ) if room not in ("_version", "suite")]
    assert mutants == [room for room in reversed(MUTANTS) if room != "suite"]


def test_the_architecture_names_files_that_exist():
    """Of kvfuzz, unless the path begins with mutants."""
    for name in re.findall(r"`([\w/]+(?:\.py|/))`", PAGES["docs/architecture.md"]):
        assert (ROOT / name).exists() or (ROOT / "kvfuzz" / name).exists(), name


def test_the_glossary_is_sorted_and_has_the_words_of_the_code():
    """The states of a mutant, the verdicts and the steps."""
    glossary = PAGES["docs/glossary.md"]
    terms = re.findall(r"^\*\*(.+?)\*\*", glossary, re.M)
    assert terms == sorted(terms, key=str.lower)
    words = {term.lower() for term in terms} | set(re.findall(r"`(\w+)`", glossary))
    steps = set(FEATURES) - {*PADDED, *GIVEN, KEEP, "several rows"}
    for word in {*STATES, *get_args(Status), *steps, "prefill"}:
        assert word.replace("_", " ") in words, word


def test_tox_has_the_environments_that_contributing_names():
    """Tests, lint, typing, fuzz, score, coverage and the others."""
    tox = configparser.ConfigParser(interpolation=None)
    tox.read(ROOT / "tox.ini")
    environments = {name.removeprefix("testenv:") for name in tox.sections()}
    named = {e for text in PAGES.values() for e in re.findall(r"tox -e ([\w,]+)", text)}
    assert {part for each in named for part in each.split(",")} <= environments | {"py"}
    for name in environments - {"tox", "testenv"}:
        assert f"`{name}`" in CONTRIBUTING, name
        assert tox[f"testenv:{name}"]["description"]


@pytest.mark.parametrize("kind", [Verdict, Difference, Impact, Divergence])
def test_the_page_on_counterexamples_names_every_key(kind):
    """Of a verdict, and of what was located."""
    named = set(re.findall(r"`(\w+)`", PAGES["docs/counterexamples.md"]))
    keys = {field.name for field in fields(kind)}
    assert keys - {"source"} <= named
