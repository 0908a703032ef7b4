"""A counterexample that needs what ran before it says so, and replays."""

import sys
import types

import pytest
import torch

import kvfuzz
from kvfuzz.case.counterexample import read
from kvfuzz.errors import InvalidCounterexample
from kvfuzz.report.text import hunt_text
from kvfuzz.search.alone import with_before
from kvfuzz.search.replay import replay
from kvfuzz.subjects.module_state import changes, module_state
from tests.subjects import memo


def test_a_memo_of_the_module_is_recorded_with_the_case_that_filled_it(tmp_path):
    """Alone, in a fresh process, the case agrees; with what the file has as `before` it
    diverges."""
    memo.MEMO.clear()
    hunt = kvfuzz.fuzz("tests.subjects.memo:Remembers", seed=0, folder=tmp_path, locate=False)
    assert hunt.verdict == "diverged"
    assert "in a fresh process it diverges only after the case that the file has" in hunt_text(hunt)
    assert "tests.subjects.memo.MEMO kept something" in hunt_text(hunt)
    assert len(hunt.counterexample.before) == 1
    assert read(hunt.path).before == hunt.counterexample.before
    memo.MEMO.clear()
    assert replay(hunt.path).verdict.diverged
    alone = with_before(hunt.counterexample, ()).save(tmp_path)
    memo.MEMO.clear()
    assert replay(alone).verdict.status == "agreed"


def test_state_of_a_module_that_does_no_harm_is_not_blamed(tmp_path):
    """The case diverges by itself, so nothing is recorded."""
    memo.MEMO.clear()
    hunt = kvfuzz.fuzz("tests.subjects.memo:WritesDown", seed=0, folder=tmp_path, locate=False)
    assert hunt.verdict == "diverged"
    assert hunt.counterexample.before == []
    assert "fresh process" not in hunt_text(hunt)


def test_what_has_to_run_before_is_checked_when_it_is_read(tmp_path):
    """It is a list of cases, like the case itself."""
    found = kvfuzz.fuzz("tests.subjects.memo:WritesDown", seed=0, folder=tmp_path, locate=False)
    path = found.path
    path.write_text(
        path.read_text().replace('"schema": 1', '"before": [{"tokens": 3}], "schema": 1')
    )
    with pytest.raises(InvalidCounterexample, match="the case has no"):
        read(path)


def test_every_kind_of_state_of_a_module_is_seen(monkeypatch, tmp_path):
    """And nothing else, such as a module that is imported meanwhile."""
    module = types.ModuleType("kept_state")
    module.__file__ = str(tmp_path / "kept_state.py")
    source = """
import functools, torch
PLAIN, LISTED, TABLE, COUNT = {}, [], torch.zeros(3), 0
class Model:
    shared = {}
    def call(self): pass
@functools.lru_cache
def rotated(n): return n
def remembers(n, memo={}): memo[n] = n
def made():
    inner = []
    return lambda n: inner.append(n)
closed = made()
"""
    exec(source, vars(module))
    module.Model.__module__ = "kept_state"
    monkeypatch.setitem(sys.modules, "kept_state", module)
    before = module_state()
    assert changes(before, module_state()) == ()
    for change, name in (
        (lambda: module.PLAIN.update(a=1), "PLAIN"),
        (lambda: module.LISTED.append(1), "LISTED"),
        (lambda: module.TABLE.add_(1), "TABLE"),
        (lambda: setattr(module, "COUNT", 1), "COUNT"),
        (lambda: module.Model.shared.update(a=torch.ones(2)), "Model.shared"),
        (lambda: module.rotated(3), "rotated"),
        (lambda: module.remembers(3), "remembers"),
        (lambda: module.closed(3), "closed"),
    ):
        before = module_state()
        change()
        assert changes(before, module_state()) == (f"kept_state.{name}",)
    late = types.ModuleType("came_later")
    late.__file__, late.X = str(tmp_path / "came_later.py"), 1
    before = module_state()
    monkeypatch.setitem(sys.modules, "came_later", late)
    assert changes(before, module_state()) == ()


def planted(monkeypatch, path, **contents):
    """Makes `kept_elsewhere` a module of the file `path`; returns the names that are looked at."""
    module = types.ModuleType("kept_elsewhere")
    module.__file__ = str(path)
    vars(module).update(contents)
    monkeypatch.setitem(sys.modules, "kept_elsewhere", module)
    return [name for name in module_state() if name.startswith("kept_elsewhere:")]


@pytest.mark.parametrize("folder", ["site-packages", "dist-packages"])
def test_packages_of_another_environment_are_not_looked_at(monkeypatch, tmp_path, folder):
    """Those that a virtual environment takes over from the system, torch among them."""
    assert planted(monkeypatch, tmp_path / "mine.py", X=1) == ["kept_elsewhere:X"]
    assert planted(monkeypatch, tmp_path / folder / "theirs.py", X=1) == []


def test_an_object_that_cannot_be_looked_at_is_no_error(monkeypatch, tmp_path):
    """Such as a proxy that asks for a GPU, or for a package, when an attribute is read."""

    class Proxy:
        def __getattr__(self, name):
            raise RuntimeError("no GPU here")

    found = planted(monkeypatch, tmp_path / "mine.py", PROXY=Proxy())
    assert found == ["kept_elsewhere:PROXY"]
    assert module_state()[found[0]] == module_state()[found[0]]
