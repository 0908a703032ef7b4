"""Boundary values: read from settings, attributes, closures and source, and nothing is run."""

import dataclasses
import sys
import textwrap
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from torch import nn

from kvfuzz.subjects.boundaries import MOST, Boundary, find_boundaries
from kvfuzz.subjects.loading import Options, load
from kvfuzz.subjects.source_constants import Constant, constants_of


def found(subject, config=(), choices=()):
    """Value and name of each boundary that is not from this file's own source."""
    return {
        one.value: one.name
        for one in find_boundaries(subject, dict(config), dict(choices))
        if not one.place
    }


def holder(**attributes):
    """A subject of a class that has no source file."""
    return type("Holder", (), {"__module__": "nowhere"} | attributes)()


@dataclasses.dataclass(frozen=True, slots=True)
class Settings:
    sliding_window: int = 7
    floor_scale: int = 8192
    hidden_size: int = 64
    layers: int = 44
    pad_token_id: int = 50
    causal: bool = True


def test_settings_that_are_drawn_or_fixed_count():
    """All the values of a choice."""
    known = found(holder(max_length=100), {"block_size": 32}, {"window": (None, 3, 40)})
    assert known == {3: "window", 32: "block_size", 40: "window", 100: "max_length"}


@pytest.mark.parametrize("config", [Settings(), dataclasses.asdict(Settings())])
@pytest.mark.parametrize("where", ["config", "text_config", "args"])
def test_a_configuration_is_read_whatever_it_is(config, where):
    """A dataclass or a dict, on the model; its widths, counts and token ids are no lengths."""
    model = nn.Linear(30, 31)
    setattr(model, where, config)
    assert found(holder(max_length=None, model=model)) == {
        7: "sliding_window", 8192: "floor_scale",
    }  # fmt: skip


def test_a_nested_configuration_is_read():
    """As of a model of text and images."""
    inner = SimpleNamespace(attention_chunk_size=48)
    subject = holder(config=SimpleNamespace(text_config=inner, sink_tokens=4))
    assert found(subject) == {4: "sink_tokens", 48: "attention_chunk_size"}


class Block(nn.Module):
    def __init__(self, window):
        super().__init__()
        self.window, self.n_heads = window, 37
        self.line = nn.Linear(33, 34)


class Model(nn.Module):
    limit = 90

    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleList([Block(25), Block(26)])


def test_modules_inside_modules_are_read_and_those_of_torch_are_not():
    """The integers that a submodule of the subject's own keeps, and class attributes."""
    assert found(holder(model=Model())) == {25: "window", 26: "window", 90: "limit"}


def test_an_attribute_of_an_instance_hides_that_of_its_class():
    """A default that is not in force is no boundary."""
    model = Model()
    model.limit = 91
    assert 90 not in found(holder(model=model))


def test_closures_are_read():
    """A subject of three functions that share variables."""
    capacity = 77

    def cached(tokens, cache):
        return tokens if len(cache) < capacity else cache

    subject = SimpleNamespace(cached=cached, vocab_size=5, max_length=None)
    assert found(subject)[77] == "capacity"


SOURCE = """
    STEP = 64
    LAYERS, RECENT, VOCAB = 40, 50, 60
    LARGE = 2 ** 10 + 8 * 4
    SMALL = 9
    WINDOW: int = 12
    table = {"block": 23, "dim": 24}


    def cached(tokens, cache, *, sink=4, count=35):
        torch.manual_seed(4321)
        if cache.length >= 41 and tokens.shape[1] != 1:
            return cache[-45:]
        return call(cache, page_size=16, hidden=29, flag=True) % 70
"""
NAMES = {
    64: "STEP", 50: "RECENT", 1056: "LARGE", 12: "WINDOW", 23: "block", 4: "sink", 35: "count",
    41: "length", 45: "", 16: "page_size", 70: "",
}  # fmt: skip


@pytest.fixture
def module(tmp_path, monkeypatch):
    """A module of SOURCE, and a class in it."""

    def make(name, source):
        path = tmp_path / f"{name}.py"
        path.write_text(textwrap.dedent(source))
        made = type(sys)(name)
        made.__file__ = str(path)
        monkeypatch.setitem(sys.modules, name, made)
        return made

    return make


def test_constants_in_the_source_of_a_subject_are_found(module):
    """With the name that each is given and its line; no counts of layers, no seeds, no truth
    values, and short lengths only if they are named like one."""
    module("growing_source", SOURCE)
    subject = holder(__module__="growing_source")
    known = find_boundaries(subject, {}, {})
    assert {one.value: one.name for one in known} == NAMES
    assert Boundary(64, "STEP", "growing_source.py:2") in known


def test_what_a_module_imports_is_read_and_what_is_installed_is_not(module):
    """The cache class may be in a neighbouring file; torch's files are torch's."""
    other = module("neighbour_source", "STEP = 99\n")
    mine = module("importing_source", "STEP = 98\n")
    mine.neighbour, mine.torch, mine.path = other, torch, Path
    values = [one.value for one in find_boundaries(holder(__module__="importing_source"), {}, {})]
    assert values == [98, 99]


@pytest.mark.parametrize("source", [None, "def (:", "\0"])
def test_source_that_is_not_available_gives_none(module, source):
    """No file, or none that can be read: the settings count all the same."""
    made = module("lost_source", source or "")
    if source is None:
        Path(made.__file__).unlink()
    assert found(holder(__module__="lost_source", window=30)) == {30: "window"}
    assert constants_of([Path(made.__file__)]) == []


def test_a_constant_has_its_file_and_line(tmp_path):
    """As an editor takes it."""
    path = tmp_path / "one.py"
    path.write_text("\n\nPAGE = 3\n")
    assert constants_of([path]) == [Constant("PAGE", 3, "one.py:3")]


def test_the_number_is_bounded_and_the_order_is_fixed():
    """Those that are named like a length come first, and then the least."""
    many = {f"field_{n}": n for n in range(1000, 1100)} | {"window": 5000}
    known = find_boundaries(holder(), many, {})
    assert len(known) == MOST
    assert [one.value for one in known] == [*range(1000, 1000 + MOST - 1), 5000]
    assert known == find_boundaries(holder(), many, {})


def test_a_circle_and_an_attribute_that_raises_do_no_harm():
    """A subject may refer to itself."""

    class Raising:
        @property
        def window(self):
            raise RuntimeError

    subject = holder(window=31)
    subject.inner, subject.me = Raising(), subject
    assert found(subject)[31] == "window"


def test_the_boundaries_of_a_factory_are_in_its_limits():
    """Those of the built-in decoder are its window and its length."""
    known = {one.value: one.name for one in load("zoo:mistral").limits().boundaries}
    assert (known[5], known[64]) == ("window", "max_length")
    twinless = load("zoo:mistral", Options(twin=False)).limits().boundaries
    assert twinless == load("zoo:mistral").limits().boundaries
