"""The tiers of the tests: what is left out has a reason, and the page of promises is true."""

import ast
import re
from collections import defaultdict
from pathlib import Path
from types import SimpleNamespace

import pytest

from tests import conftest
from tests.times import Times

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "docs" / "tests.md").read_text()
PROMISE = re.compile(r"^\| (?P<promise>[^|]+) \| `(?P<test>[^|`]+)` \| (?P<tier>[^|]+) \|$", re.M)
PROMISES = [found.groupdict() for found in PROMISE.finditer(PAGE)]


def exists(test):
    """Whether `tests/test_x.py::test_y` is a function of that file."""
    path, _, name = test.partition("::")
    tree = ast.parse((ROOT / path).read_text()) if (ROOT / path).exists() else ast.Module([], [])
    return name in {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}


def tiers_of(items):
    """The tier of each test function; one whose parameters are in both has both."""
    found = defaultdict(set)
    for item in items:
        tier = "full" if item.get_closest_marker("full") else "quick"
        found[item.nodeid.partition("[")[0]].add(tier)
    return {test: ", ".join(sorted(tiers, reverse=True)) for test, tiers in found.items()}


def untrue(promises, tiers):
    """The promises whose test does not exist, or runs in another tier; `tiers` may lack tests of
    modules that were not collected."""
    return [
        each["test"]
        for each in promises
        if not exists(each["test"]) or tiers.get(each["test"], each["tier"]) != each["tier"]
    ]


def test_the_page_names_tests_that_exist_at_their_tier(collected):
    """A promise whose test was renamed, removed or moved to the tier full is found here."""
    assert len(PROMISES) >= 100
    assert untrue(PROMISES, tiers_of(collected)) == []


def test_an_untrue_promise_is_found():
    """One without a test, and one in the wrong tier."""
    here = "tests/test_tiers.py::test_an_untrue_promise_is_found"
    gone = [{"test": f"{here}_gone", "tier": "quick"}, {"test": "tests/gone.py::x", "tier": "full"}]
    assert untrue(gone, {}) == [f"{here}_gone", "tests/gone.py::x"]
    true = [{"test": here, "tier": "quick"}]
    assert untrue(true, {}) == untrue(true, {here: "quick"}) == []
    assert untrue(true, {here: "full"}) == untrue(true, {here: "quick, full"}) == [here]


def test_what_is_left_out_of_quick_has_a_reason(collected):
    """Each mark says why its test is not in the tier that everybody runs."""
    marks = [mark for item in collected for mark in item.iter_markers("full")]
    assert all(not mark.args and len(mark.kwargs["reason"].split()) > 1 for mark in marks)


class Item:
    """A test, of the tier full or not."""

    def __init__(self, full):
        self.full = full

    def get_closest_marker(self, name):
        return self.full and name == "full"


@pytest.mark.parametrize("asked", [False, True])
def test_the_tier_full_runs_only_when_it_is_asked_for(asked):
    """What is left out counts as deselected; both tiers can be asked what they are."""
    quick, full, seen = Item(False), Item(True), []
    hook = SimpleNamespace(pytest_deselected=lambda items: seen.extend(items))
    config = SimpleNamespace(option=SimpleNamespace(full=asked), hook=hook, stash={})
    items = [full, quick]
    conftest.pytest_collection_modifyitems(config, items)
    assert items == ([full, quick] if asked else [quick])
    assert seen == ([] if asked else [full])
    assert config.stash[conftest.COLLECTED] == (full, quick)


def test_the_times_are_added_up_by_module_and_tier(tmp_path):
    """Slow modules have a line each, the others share one; the page keeps what is around them."""
    measured = Times()
    for nodeid, when, tier, cpu in (
        ("tests/test_a.py::test_x", "setup", "quick", 1.0),
        ("tests/test_a.py::test_x", "call", "quick", 2.25),
        ("tests/test_a.py::test_y", "setup", "full", 7.0),
        ("tests/test_b.py::test_z", "setup", "quick", 0.5),
    ):
        report = SimpleNamespace(nodeid=nodeid, when=when, tier=tier, cpu=cpu)
        measured.pytest_runtest_logreport(report)
    assert measured.rows() == [
        ("`tests/test_a.py`", "1", "3.2", "1", "7.0"),
        ("others (1)", "1", "0.5", "", ""),
        ("all", "2", "3.8", "1", "7.0"),
    ]
    page = tmp_path / "page.md"
    page.write_text(PAGE)
    measured.write(page)
    before, _, rest = PAGE.partition("<!-- times")
    assert page.read_text().startswith(before)
    assert page.read_text().endswith(rest.partition("<!-- end of times -->\n")[2])
    assert "| all | 2 | 3.8 | 1 | 7.0 |\n" in page.read_text()
