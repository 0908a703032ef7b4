"""What a divergence looks like: the nearest fault of the library."""

import tomllib
from dataclasses import replace
from importlib import import_module
from pathlib import Path

import pytest

from kvfuzz.case.case import Case
from kvfuzz.case.schedule import Crop, Fork, Restore
from kvfuzz.localize.location import Location
from kvfuzz.subjects.loading import load
from kvfuzz.subjects.trace import Site
from mutants.equivalence.twins import near_twins
from mutants.library.mutant import mutant, steps
from mutants.library.mutant_scheme import mutated
from mutants.library.registry import find, library
from mutants.similar.nearest import CLOSE, NAMED, nearest
from mutants.similar.pattern import WEIGHTS, pattern, similarity
from mutants.similar.store import located, patterns, shown, stored, witnessed

ZOO = load("zoo")
SAMPLE = [m.id for m in shown()][::12]


def seen(mutant_id, case=None):
    """The location of a mutant on `case`, or on its witness, and the case."""
    fault = find(mutant_id)
    case = case or fault.witness
    return located(mutated(ZOO, fault), case), case


def test_every_fault_that_shows_in_the_logits_has_a_stored_pattern():
    """Written by `python -m mutants.similar.store`."""
    assert list(stored()) == [fault.id for fault in shown()]
    assert set(patterns()) == set(stored())
    assert all(set(of_fault) <= set(WEIGHTS) for of_fault in stored().values())


@pytest.mark.parametrize("mutant_id", SAMPLE)
def test_a_stored_pattern_is_that_of_the_witness(mutant_id):
    """Run again now."""
    assert witnessed(find(mutant_id)) == stored()[mutant_id]


@pytest.mark.parametrize("mutant_id", SAMPLE)
def test_a_fault_looks_most_like_itself(mutant_id):
    """On its witness; others may look the same."""
    close = nearest(*seen(mutant_id))
    assert close[0].similarity == 1.0
    assert len(close) <= NAMED
    assert all(near.similarity >= CLOSE for near in close)


def test_a_known_bug_is_told_in_words():
    """From a case that is no witness."""
    case = Case(((0, 0, 0, 0),), (2, 2), dtype="float64")
    (first, *_) = nearest(*seen("position.restarts_at_each_chunk", case))
    assert first.id.startswith("position.")
    named = nearest(*seen("position.restarts_at_each_chunk"))
    told = {near.id: near.description for near in named}["position.restarts_at_each_chunk"]
    assert told == (
        "position restarts at each chunk (positions start at 0 in every call, whatever the cache "
        "holds)"
    )


@pytest.mark.parametrize(
    ("mutant_id", "operator"),
    [
        ("append.drops_the_oldest", "append"),
        ("crop.keeps_one_too_many", "crop"),
        ("norm.skips_before_attention", "norm"),
        ("position.counts_calls", "position"),
        ("quantise.wraps_round", "quantise"),
        ("recurrent.starts_from_nothing_at_each_token", "recurrent"),
        ("restore.saves_one_slot_too_few", "restore"),
        ("window.is_one_long", "window"),
    ],
)
def test_an_unknown_fault_is_told_by_its_kind(mutant_id, operator):
    """Without the fault itself and its near-twins in the comparison: the figures for the library
    are those of `benchmarks/nearest.py`."""
    left_out = near_twins(find(mutant_id), library().values())
    (first, *others) = nearest(*seen(mutant_id), left_out)
    assert find(first.id).operator == operator
    assert not {near.id for near in (first, *others)} & left_out


def test_nothing_is_named_where_nothing_differs_or_is_close():
    """It is silent rather than wrong."""
    assert nearest(Location(None), steps(1)) == ()
    location, case = seen("norm.skips_before_attention")
    first = location.first
    schedule = (1, Fork(), Restore(), Crop(1), 1)
    odd = replace(case, schedule=schedule, tokens=((1, 2),), config={"mix": "convolution"})
    assert nearest(replace(location, first=replace(first, step=4)), odd) == ()
    assert nearest(location, case)
    assert nearest(replace(location, first=replace(first, site=Site("logits"))), case) == ()


def test_the_pattern_says_what_a_person_would():
    """In words, by feature."""
    location, case = seen("crop.keeps_one_too_many")
    assert pattern(location, case) == {
        "operations": {"crop"},
        "site": {"cache"},
        "where": {"new tokens"},
        "count": {"too many"},
        "size": {"whole"},
        "layers": {"the first", "all alike"},
        "step": {"decode"},
    }


def test_similarity_is_the_weighted_share_of_words():
    """1 for the same, and less by the weight of what is not shared."""
    one, other = ({"site": frozenset(words)} for words in (("kv",), ("kv", "cache")))
    assert similarity(one, one) == 1.0
    whole = sum(WEIGHTS.values())
    assert similarity(one, other) == pytest.approx(1 - WEIGHTS["site"] / 2 / whole)
    assert similarity(one, {}) == pytest.approx(1 - WEIGHTS["site"] / whole)


def test_a_fault_of_another_package_is_never_run_to_be_compared(monkeypatch):
    """It might end the process in which somebody else's fault is looked at."""

    def ends(real):
        """The process ends."""
        pytest.fail("it was run")

    extra = replace(mutant("store", site="0.cache", witness=steps(1))(ends), operator="package")
    ours = {**library(), extra.id: extra}
    monkeypatch.setattr("mutants.similar.store.library", lambda: ours)
    patterns.cache_clear()
    try:
        assert set(patterns()) == {m.id for m in shown()} - {extra.id}
    finally:
        patterns.cache_clear()


def test_a_near_twin_differs_by_a_constant_alone():
    """A number, a dtype, a sign or a comparison; other lines, or another stage, are no twin."""
    known = library().values()

    def twins(mutant_id):
        return near_twins(find(mutant_id), known) - {mutant_id}

    assert twins("dtype.rounds_to_float16") == {"dtype.rounds_to_bfloat16"}
    assert twins("window.is_one_long") == {"window.is_one_short"}
    assert twins("position.one_too_far") == {"position.one_behind"}
    assert twins("recurrent.starts_from_nothing_at_each_token") == {
        "recurrent.starts_from_nothing_at_a_later_chunk"
    }
    assert twins("norm.skips_before_attention") == set()


def test_kvfuzz_finds_it_through_its_entry_point():
    """It does not import the mutants itself."""
    text = (Path(__file__).parents[2] / "pyproject.toml").read_text()
    (value,) = tomllib.loads(text)["project"]["entry-points"]["kvfuzz.nearest"].values()
    module, _, name = value.partition(":")
    assert getattr(import_module(module), name) is nearest
