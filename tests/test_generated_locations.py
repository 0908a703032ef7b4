"""The generator of faults changes one statement, draws the same for a seed, and judges a line."""

import ast
import random

import pytest
import torch

from benchmarks.generated import when
from benchmarks.generated.draw import Fault, Site, draw_fault, sites_in
from benchmarks.generated.judge import Result, hit_of, shows
from benchmarks.generated.kinds import CONDITIONS, KINDS
from benchmarks.generated.models import LIBRARY, MODELS, OWN, Model
from benchmarks.generated_locations import remarks, table
from kvfuzz.localize.location import Line
from tests.quality.injected.copies import Copy

SOURCE = """\
class Layer:
    def forward(self, x, y, cache=None):
        if cache is not None:
            x = torch.cat((cache, x), dim=1)
        scores = torch.matmul(
            x, y.transpose(1, 2)
        ) * self.scale_of(self.layer_idx) * 0.5
        x = x + y[:, :3]
        cache[:, 0] = x
        x += 2.0 * y
        return torch.softmax(scores / 8**0.5, dim=-1), x
"""
SHAPES = {"x": (2, 3, torch.float32), "y": (2, 3, torch.float32), "cache": (2, 1, torch.float32)}


def sites():
    lines = {("layer", number): SHAPES for number in range(1, 20)}
    return list(sites_in("layer", SOURCE, lines))


def drawn(count=400, seed=0):
    rng = random.Random(seed)
    made = (draw_fault(rng, "m", {"layer": SOURCE}, sites()) for _ in range(count))
    return [fault for fault in made if fault is not None]


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return Model("functions", tmp_path_factory.mktemp("generated"))


def test_the_models_are_many():
    """At least 15 files of the library and 10 decoders of its own."""
    assert len(LIBRARY) >= 15
    assert len(OWN) >= 10
    assert len(MODELS) >= 25


@pytest.mark.parametrize("kind", sorted(KINDS))
def test_each_kind_of_fault_fits_somewhere(kind):
    """In a small layer that has all it needs."""
    assert any(list(KINDS[kind](site.statement, site.shapes)) for site in sites())


def test_a_fault_changes_its_own_statement_alone():
    """No line moves, the result compiles, and all kinds and conditions are drawn."""
    faults = drawn()
    for fault in faults:
        faulty, first = fault.applied(SOURCE)
        ast.parse(faulty)
        old, new = SOURCE.splitlines(), faulty.splitlines()
        changed = [n for n, (a, b) in enumerate(zip(old, new, strict=False), 1) if a != b]
        assert changed, fault
        assert first == fault.lines[0] <= changed[0]
        assert changed[-1] <= fault.lines[1]
    assert {fault.kind for fault in faults} == set(KINDS)
    assert {fault.condition for fault in faults} == set(CONDITIONS)


def test_a_seed_draws_the_same_faults():
    """Another one draws others."""
    assert drawn(20, 5) == drawn(20, 5)
    assert drawn(20, 5) != drawn(20, 6)


def test_only_lines_that_run_are_changed():
    """A statement that nothing runs would be drawn in vain."""
    lines = {("layer", 10): SHAPES}
    (site,) = sites_in("layer", SOURCE, lines)
    assert isinstance(site, Site)
    assert site.statement.lineno == 10


def test_a_fault_sees_what_its_call_is_given():
    """How full the cache is, how many tokens are fed, and what was computed in the call before."""
    seen = []

    def cached(tokens, cache):
        conditions = when.filled(), when.single(), when.beyond(2)
        seen.append((*conditions, when.stale(None, "x", torch.full((1,), cache))))

    method = when.told(cached, lambda cache: cache)
    for fed, past in ((2, 0), (1, 2), (1, 3), (1, 0)):
        method(torch.zeros(1, fed), past)
    conditions = [one[:3] for one in seen]
    assert conditions == [
        (False, False, False),
        (True, True, False),
        (True, True, True),
        (False, True, False),
    ]
    assert [int(one[3]) for one in seen] == [0, 0, 2, 0]


def test_asking_for_the_length_is_outside_of_every_call():
    """A fault in the code that tells the length would otherwise see the call before."""
    seen = []
    method = when.told(
        lambda tokens, cache: None, lambda cache: seen.append(when.filled()) or cache
    )
    method(torch.zeros(1, 1), 3)
    method(torch.zeros(1, 1), 4)
    assert seen == [False, False]


@pytest.mark.parametrize(
    "name",
    [
        name
        if name in ("functions", "ring")
        else pytest.param(name, marks=pytest.mark.full(reason="the same promise for more files"))
        for name in OWN
    ],
)
def test_a_decoder_without_a_fault_agrees(name, tmp_path):
    """Otherwise its own fault would be located in place of the drawn one."""
    assert not shows(Model(name, tmp_path).factory)


def fault_at(model, text, becomes):
    """The fault that puts `becomes` in the place of the statement `text`."""
    source = model.sources["functions"]
    start = source.index(text)
    line = source[:start].count("\n") + 1
    where = start, start + len(text)
    return Fault(
        "functions", "k", "always", "functions", (line, line), (1, 99), *where, becomes, ""
    )


def test_a_fault_in_one_path_shows_and_one_in_both_does_not(model):
    """The latter is replaced by the next draw."""
    text = "scores = torch.matmul(query, key) / SIZE**0.5"
    for condition, found in (("_when.filled()", True), ("True", False)):
        fault = fault_at(model, text, f"{text} * (1.5 if {condition} else 1)")
        copy = model.copied(f"one_{found}", [fault])
        try:
            assert shows(model.made(copy)) == found
        finally:
            copy.forget()


def test_what_a_named_line_counts_as(tmp_path):
    """That of the statement, one that it reaches, one of its function, and others."""
    fault = Fault("m", "k", "always", "layer", (4, 5), (2, 9), 0, 1, "", "")
    copy = Copy(None, None, tmp_path / "drawn_1", frozenset())
    reached = (("layer", 12),)

    def hit(line, folder="drawn_1"):
        return hit_of(Line(f"{folder}/layer.py", line), copy, fault, reached)

    lines = (4, 5, 12, 8, 30)
    assert [hit(line) for line in lines] == ["line", "line", "reached", "function", "wrong"]
    assert hit(4, "torch") == "outside"
    assert hit_of(None, copy, fault, reached) == "none"


def result(hit, unsure=False, cause="scale", right=True):
    fault = Fault("m", "sign swapped", "always", "layer", (4, 5), (2, 9), 0, 1, "", "")
    texts = dict.fromkeys(("suspect", "named", "text"), "")
    return Result(
        fault,
        "agreement",
        "",
        hit,
        hit != "wrong",
        unsure,
        unsure,
        cause,
        right,
        reached=(),
        **texts,
    )


def test_the_shares_are_of_all_faults():
    """A line that is unsure is not wrong with confidence, and not right either."""
    results = [result("line"), result("reached"), result("wrong"), result("wrong", unsure=True)]
    said = "\n".join(remarks(results))
    for text in (
        " 50.0% line right",
        " 50.0% function right",
        " 25.0% wrong line with confidence",
        " 25.0% unsure",
        "100.0% causes right",
    ):
        assert text in said
    assert table(results).row_count == 2
    assert "  0.0% causes right" in "\n".join(remarks([result("line", right=False)]))
