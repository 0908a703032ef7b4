"""Expected divergences: counted, warned of when they are gone, and no cover for others."""

import json
import re
from dataclasses import replace
from pathlib import Path

import pytest

import kvfuzz
from kvfuzz.case.case import Case
from kvfuzz.case.schedule import Crop
from kvfuzz.case.verdict import Verdict
from kvfuzz.cli.main import main
from kvfuzz.errors import UsageError
from kvfuzz.search.known_divergences import Expectation, read_expectations
from tests.subjects.recomputing import Recomputes


class CropsOneLess(Recomputes):
    def crop(self, cache, count):
        return super().crop(cache, count - 1)


class Two(CropsOneLess):
    def reset(self, cache):
        return cache


def test_an_expected_divergence_ends_no_hunt():
    """It is counted, and the verdict is about the rest."""
    known = Expectation("*CropsOneLess", "crop is off by one", elements=("crop",))
    hunt = kvfuzz.fuzz(CropsOneLess, seed=0, examples=80, expected=[known])
    assert hunt.verdict == "agreed"
    assert hunt.expected[0] > 3
    assert hunt.warnings == ()
    assert hunt.to_json()["expected"] == {"1": hunt.expected[0]}


def test_another_divergence_is_found_all_the_same():
    """And shrinks to what is not expected."""
    known = Expectation("*Two", "crop is off by one", elements=("crop",))
    hunt = kvfuzz.fuzz(Two, seed=0, expected=[known])
    assert hunt.verdict == "diverged"
    assert [step.kind for step in hunt.failure.case.steps()] == ["prefill", "reset", "prefill"]


def test_a_known_divergence_covers_its_own_law_alone():
    """And only cases with its settings, elements and length."""
    case = Case(((1, 2, 3, 4),), (2, Crop(1), 2), config={"heads": 4})
    agreement, frame = Verdict("diverged"), Verdict("diverged", law="frame")
    known = Expectation("*", "a bug", "agreement", {"heads": 4}, ("crop",), 3)
    assert known.covers(case, agreement)
    assert not known.covers(case, frame)
    for other in ({"law": "frame"}, {"config": {"heads": 2}}, {"elements": ("fork",)}):
        assert not replace(known, **other).covers(case, agreement)
    assert not replace(known, length=4).covers(case, agreement)


def test_what_no_longer_diverges_is_warned_of():
    """An entry outlives its fault, or is about nothing."""
    gone = Expectation("*Recomputes", "crop is off by one", elements=("crop",))
    hunt = kvfuzz.fuzz(Recomputes, seed=0, examples=30, expected=[gone])
    assert hunt.warnings == (
        "expected divergence 1 (crop is off by one) did not show: does it still diverge?",
    )
    other = Expectation("zoo:*", "a typing error")
    hunt = kvfuzz.fuzz(Recomputes, seed=0, examples=30, expected=[other])
    assert "no expected divergence is about" in hunt.warnings[0]


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ({}, "should hold a list, got dict"),
        ([1], "entry 1 of --expected .* should be an object, got 1"),
        ([{"subject": "zoo"}], "entry 1 of --expected .* has no reason"),
        ([{"reason": "so"}], "has no subject"),
        (
            [{"subject": "zoo", "reason": "so", "lwa": "x"}],
            r"has no field 'lwa' \(did you mean law",
        ),
        ([{"subject": "zoo", "reason": "so", "law": "x"}], "names 'x', which kvfuzz does not know"),
        ([{"subject": "zoo", "reason": "so", "elements": ["crp"]}], "did you mean crop"),
        ([{"subject": "zoo", "reason": "so", "length": "x"}], "length in entry 1 .* an integer"),
    ],
)
def test_a_file_that_is_wrong_is_told_in_one_line(data, message, tmp_path):
    """Which entry, and what it should be."""
    path = tmp_path / "expected.json"
    path.write_text(json.dumps(data))
    with pytest.raises(UsageError, match=message):
        read_expectations(path)


def test_on_the_command_line(tmp_path, monkeypatch, capsys):
    """`--expected FILE`, and a file that is not there."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "expected.json").write_text(
        json.dumps([{"subject": "mutant:*", "reason": "a fault on purpose", "length": 1}])
    )
    known = [
        "fuzz",
        "mutant:position.one_behind",
        "--expected",
        "expected.json",
        "--examples",
        "30",
    ]
    assert main(known) in (0, 3)
    assert "cases diverged as declared" in capsys.readouterr().out
    assert main(["fuzz", "zoo", "--expected", "nowhere.json"]) == 2
    assert "cannot read --expected nowhere.json" in capsys.readouterr().err


def test_what_is_excluded_of_transformers_is_shown_by_a_script():
    """No subject is let off on kvfuzz's word alone."""
    folder = Path(__file__).parents[1] / "benchmarks" / "exclusions"
    known = read_expectations(folder / "transformers.json")
    assert known
    for one in known:
        script = re.search(r"\((\w+\.py)\)$", one.reason)
        assert "kvfuzz" not in re.sub(
            r'""".*?"""', "", (folder / script[1]).read_text(), flags=re.S
        )
