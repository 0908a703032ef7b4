"""On real models `locate` names the line of the fault, or the first that the fault reaches, and
never a line outside the model.

Copies of the library's modeling code get one fault each. `benchmarks/locating.py` runs the whole
table, these tests a part of it.
"""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

import kvfuzz
from kvfuzz.localize.location import Line

pytest.importorskip("transformers")

from tests.quality.injected.bench import Bench
from tests.quality.injected.copies import (
    CACHE,
    RELEASE,
    Anchor,
    BadAnchor,
    Edit,
    copied,
    installed_release,
    library_file,
)
from tests.quality.injected.faults import ARCHITECTURES, FAULTS
from tests.quality.injected.reach import Operation, reached

if installed_release() != RELEASE:
    pytest.skip(f"the anchors are in transformers {RELEASE}", allow_module_level=True)

PART = [fault for fault in FAULTS if fault.in_tests]


@pytest.fixture(scope="module")
def bench(tmp_path_factory):
    return Bench(tmp_path_factory.mktemp("copies"))


def test_the_table_is_wide():
    """Many faults of many kinds, over all kinds of positions and caches."""
    assert len(FAULTS) >= 40
    assert len({fault.kind for fault in FAULTS}) >= 10
    assert {fault.model for fault in FAULTS} == set(ARCHITECTURES)
    assert len({fault.name for fault in FAULTS}) == len(FAULTS)
    assert len({fault.model for fault in PART}) >= 5


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name)
def test_every_fault_is_where_the_table_says(fault):
    """Its anchors exist, only their line changes, and the result compiles."""
    for edit in fault.edits:
        source = library_file(edit.anchor.file or fault.model).read_text(encoding="utf-8")
        faulty, number = edit.applied(source)
        changed = [
            at
            for at, (old, new) in enumerate(
                zip(source.splitlines(), faulty.splitlines(), strict=True), 1
            )
            if old != new
        ]
        assert changed == [number]
        compile(faulty, fault.name, "exec")


@pytest.mark.parametrize("fault", PART, ids=lambda fault: fault.name)
def test_a_fault_shows_and_its_line_is_named(bench, fault):
    """Without the fault the copy agrees, with it it diverges, and `locate` says where."""
    assert bench.clean(fault).status == "agreed"
    with bench.injected(fault) as injected:
        verdict = injected.verdict()
        assert verdict.status == "diverged"
        assert verdict.error is None
        if fault.reaches is not None:
            assert injected.declared() in injected.reached
        location = injected.locate()
        line = injected.line(location)
        assert injected.hit(line) in ("injected", "reached"), f"{line} {line and line.text}"
        assert location.suspect in (fault.path, "unknown")


@pytest.mark.parametrize("fault", PART[-5:], ids=lambda fault: fault.name)
def test_nothing_is_named_where_nothing_is_wrong(bench, fault):
    """The same case without the fault has no first difference."""
    location = kvfuzz.locate(*bench.without(fault))
    assert location is None or location.first is None


def test_a_copy_keeps_its_lines_and_its_own_caches(tmp_path):
    """Its code imports the copied caches and masks, and everything else from the library."""
    copy = copied("llama", "kept_lines", tmp_path)
    try:
        for path in copy.folder.glob("*.py"):
            name = path.stem.removeprefix("modeling_")
            if name != "__init__":
                original = library_file(name).read_text(encoding="utf-8").splitlines()
                assert len(path.read_text(encoding="utf-8").splitlines()) == len(original)
        assert copy.model.DynamicCache is copy.caches.DynamicCache
        assert copy.model.create_causal_mask.__module__ == "kept_lines.masking_utils"
        assert copy.model.LlamaConfig.__module__.startswith("transformers.models.llama")
        assert copy.lines == frozenset()
    finally:
        copy.forget()


def test_an_anchor_is_there_as_often_as_it_says():
    """Otherwise the fault would be put elsewhere."""
    source = "one\ntwo\none again\n"
    assert Anchor("two").line(source) == 2
    assert Anchor("one", nth=2, of=2).line(source) == 3
    for text in ("one", "three"):
        with pytest.raises(BadAnchor, match="should be on 1"):
            Anchor(text).line(source)
    assert Edit(Anchor("two"), "2").applied(source) == ("one\n2\none again\n", 2)


def operation(line, value, view=False):
    return Operation(("model", line), "add", torch.tensor([value]), view)


def test_what_a_fault_reaches():
    """The first line after it that differs and the first that computes; the same again of the lines
    that the other path runs too. Not lines that agree, nor the fault's own."""
    clean = [operation(line, 0) for line in range(1, 9)]
    values = {2: 5, 4: 5, 5: 5, 7: 5, 8: 5}
    faulty = [operation(line, values.get(line, 0), line == 4) for line in range(1, 9)]
    other = [operation(line, 0) for line in (1, 7, 8)]
    own = frozenset({("model", 2)})
    assert reached(faulty, clean, other, own) == (("model", 4), ("model", 5), ("model", 7))
    assert reached(clean, clean, other, own) == ()


def test_an_operation_left_out_is_no_difference_of_its_own():
    """The operations after it may differ."""
    clean = [operation(line, line) for line in (1, 2, 3, 4)]
    faulty = [operation(1, 1), operation(3, 7), operation(4, 8)]
    own = frozenset({("model", 2)})
    assert reached(faulty, clean, clean, own) == (("model", 3),)


def test_what_nothing_has_computed_does_not_differ():
    """NaN, which fills unwritten memory, is the same in both runs."""
    clean, faulty = ([operation(1, torch.nan), operation(2, end)] for end in (1.0, 2.0))
    assert reached(faulty, clean, clean, frozenset()) == (("model", 2),)


def test_what_a_line_counts_as(bench):
    """A line of the library's own files is outside, even if the copied one has that number."""
    fault = next(fault for fault in FAULTS if fault.name == "llama.position_one_too_far")
    with bench.injected(fault) as injected:
        ((_, number),) = injected.copy.lines
        file = f"{injected.copy.package}/modeling_llama.py"
        after = injected.reached[0][1]
        assert injected.hit(Line(file, number)) == "injected"
        assert injected.hit(Line(file, after)) == "reached"
        assert injected.hit(Line(file, 1)) == "miss"
        assert injected.hit(Line(f"{injected.copy.package}/{CACHE}.py", number)) == "miss"
        library = "transformers/models/llama/modeling_llama.py"
        assert injected.hit(Line(library, number)) == "outside"
        assert injected.hit(None) == "none"
        assert replace(injected, reached=()).hit(Line(file, after)) == "miss"
