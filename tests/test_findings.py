"""Each script of benchmarks/findings names its repository, and docs/findings.md lists it."""

import ast
import re
import runpy
import sys
from pathlib import Path

import pytest

from kvfuzz.errors import InvalidSubject

ROOT = Path(__file__).parents[1]
FOLDER = ROOT / "benchmarks" / "findings"
SCRIPTS = sorted(path for path in FOLDER.glob("*.py") if path.name != "checkout.py")
PAGE = (ROOT / "docs" / "findings.md").read_text()
FIELDS = {
    "repository": r"https://github\.com/[\w.-]+/[\w.-]+",
    "commit": r"[0-9a-f]{40}",
    "file": r"[\w./-]+\.py",
    "needs": r".+",
    "verdict": "diverged|agreed",
}
LONGEST = 80

BROKEN = '''"""A library whose cache fades."""

import absent
'''
LIBRARY = '''"""A library whose cache fades, or not."""

import torch

FADE = 1.0


class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = torch.nn.Embedding(20, 8)

    def forward(self, tokens, state=None):
        states = self.embedding(tokens).cumsum(1)
        if state is not None:
            states = states + FADE * state[:, None]
        return states @ self.embedding.weight.T, states[:, -1]
'''
SCRIPT = '''"""A script of this test."""

import torch
from checkout import hunt, library


class Subject:
    vocab_size, max_length = 20, 8

    def __init__(self, seed=0):
        torch.manual_seed(seed)
        self.model = library("planted.model", bare=["planted"]).Model()

    def uncached(self, tokens):
        return self.model(tokens)[0]

    def new_cache(self, batch):
        return None

    def cached(self, tokens, cache):
        return self.model(tokens, cache)


if __name__ == "__main__":
    hunt(__file__)
'''


def fields(text):
    """The lines `name: value` in the docstring of a script, by name."""
    return dict(re.findall(r"^([a-z]+): (.+)$", ast.get_docstring(ast.parse(text)) or "", re.M))


def faults(text):
    """What a script lacks."""
    compile(text, "script", "exec")
    found = fields(text)
    lacking = [n for n, form in FIELDS.items() if not re.fullmatch(form, found.get(n, ""))]
    return lacking + ["short"] * (len(text.splitlines()) > LONGEST)


@pytest.fixture
def script(tmp_path, monkeypatch):
    """Returns a function that runs a script with arguments, as Python does, and gives its exit
    code. What it imports is forgotten."""
    before = set(sys.modules)
    monkeypatch.setattr(sys, "path", [str(FOLDER), *sys.path])
    monkeypatch.setenv("KVFUZZ_CHECKOUT", "")
    monkeypatch.chdir(tmp_path)

    def run(path, *arguments):
        monkeypatch.setattr(sys, "argv", [str(path), *map(str, arguments)])
        with pytest.raises(SystemExit) as ended:
            runpy.run_path(str(path), run_name="__main__")
        return ended.value.code

    yield run
    for name in set(sys.modules) - before:
        if name.partition(".")[0] in ("checkout", "planted") or "kvfuzz_subject" in name:
            del sys.modules[name]


@pytest.fixture
def planted(tmp_path):
    """A script, and a checkout of a library whose package cannot be imported, its module can."""
    package = tmp_path / "planted"
    package.mkdir()
    (package / "__init__.py").write_text(BROKEN)
    (package / "model.py").write_text(LIBRARY)
    (tmp_path / "finding.py").write_text(SCRIPT)
    return tmp_path / "finding.py", tmp_path


@pytest.mark.parametrize("path", SCRIPTS, ids=lambda path: path.stem)
def test_a_script_says_what_it_shows(path):
    """It compiles and is short, and its docstring has every field."""
    assert faults(path.read_text()) == []


def test_a_script_that_says_too_little_is_found():
    """The test above can fail."""
    assert faults('"""A script.\n\ncommit: abc\n"""') == list(FIELDS)
    assert faults(SCRIPTS[0].read_text() + "\n" * LONGEST) == ["short"]


@pytest.mark.parametrize("path", SCRIPTS, ids=lambda path: path.stem)
def test_a_missing_checkout_is_refused_in_one_line(script, capsys, path):
    """With the file that is not there."""
    assert script(path, "nowhere", "--examples", "1") == 2
    error = capsys.readouterr().err
    assert len(error.splitlines()) == 1
    assert "nowhere is no such checkout: there is no file" in error


def test_a_script_without_a_path_is_refused(script, capsys):
    """It says which variable names one."""
    assert script(SCRIPTS[0]) == 2
    assert "set KVFUZZ_CHECKOUT to the path of a checkout" in capsys.readouterr().err


@pytest.mark.parametrize(("fade", "code"), [("1.0", 0), ("0.9", 1)])
def test_a_script_exits_by_its_verdict(script, planted, capsys, fade, code):
    """1 for a divergence, of a library in a package whose `__init__` does not import."""
    path, checkout = planted
    (checkout / "planted" / "model.py").write_text(LIBRARY.replace("1.0", fade))
    assert script(path, checkout, "--examples", "20") == code
    assert capsys.readouterr().out.startswith("DIVERGED" if code else "AGREED")


def test_a_missing_package_is_named(script, planted, capsys):
    """That of the library's import, in one line."""
    path, checkout = planted
    (checkout / "planted" / "model.py").write_text(BROKEN)
    assert script(path, checkout) == 2
    assert capsys.readouterr().err == ("kvfuzz: planted.model needs absent: install it with pip\n")


def test_only_a_missing_package_is_stubbed(script, monkeypatch):
    """And a part of it; never one that is installed."""
    checkout = __import__("checkout")
    for name in ("absent", "absent.part", "json"):
        checkout.stub(name, value=3)
    absent = sys.modules["absent"]
    monkeypatch.delitem(sys.modules, "absent")
    monkeypatch.delitem(sys.modules, "absent.part")
    assert absent.part.value == absent.value == 3
    assert not hasattr(sys.modules["json"], "value")
    with pytest.raises(InvalidSubject, match="set KVFUZZ_CHECKOUT"):
        checkout.library("planted")


def test_the_page_lists_the_scripts():
    """Every one, and no other."""
    listed = set(re.findall(r"benchmarks/findings/(\w+\.py)\)", PAGE))
    assert listed == {path.name for path in SCRIPTS}


@pytest.mark.parametrize("path", SCRIPTS, ids=lambda path: path.stem)
def test_the_page_links_the_lines_that_a_script_means(path):
    """In its file at its commit; and every link is to a commit, not to a branch."""
    found = fields(path.read_text())
    link = f"{found['repository']}/blob/{found['commit']}/{found['file']}#L"
    assert link in PAGE
    assert f"| {found['repository']} | `{found['commit']}` |" in PAGE
    blobs = re.findall(r"https://github\.com/[\w.-]+/[\w.-]+/blob/([^/]+)/", PAGE)
    assert all(re.fullmatch(r"[0-9a-f]{40}", blob) for blob in blobs)
