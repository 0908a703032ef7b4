"""Strategies draw valid cases of every family, in a short run, whatever the seed."""

import functools
import os
import subprocess
import sys
from collections import Counter
from dataclasses import replace

import pytest
from hypothesis import find, given, settings
from hypothesis import strategies as st

from kvfuzz.case.features import FEATURES, family, features_of
from kvfuzz.errors import UsageError
from kvfuzz.search.hypothesis_private import PATCHED, independent_draws
from kvfuzz.search.hypothesis_run import run_strategy
from kvfuzz.search.rounds import draw_cases
from kvfuzz.search.strategies import PLAIN_FOCUSES, Space, cases, space_of
from kvfuzz.subjects.loading import load

SPACE = space_of(load("zoo"))
MORE = pytest.mark.full(reason="the same promise under other seeds, a second each")


def seeds(quick, full):
    """The first `quick` seeds, and in the tier full as many as `full`."""
    return [*range(quick), *(pytest.param(seed, marks=MORE) for seed in range(quick, full))]


@functools.cache
def drawn_cases(seed, examples):
    """What the tests of this file share."""
    return tuple(draw_cases(SPACE, seed, examples))


@given(cases(SPACE))
def test_rows_are_different_and_in_range(case):
    """Rows of one batch differ, so that a crossed row shows; tokens fit the vocabulary."""
    assert len(set(case.tokens)) == case.batch
    assert all(0 <= token < SPACE.vocab_size for row in case.tokens for token in row)
    assert case.length <= SPACE.max_length


@given(
    st.tuples(st.integers(1, 12), st.sampled_from(sorted(PLAIN_FOCUSES))).flatmap(
        lambda drawn: st.tuples(st.just(drawn[0]), PLAIN_FOCUSES[drawn[1]](drawn[0]))
    )
)
def test_schedules_fit_whatever_is_longest(drawn):
    """Also where the longest row is a single token."""
    longest, schedule = drawn
    assert 1 <= sum(schedule) <= longest
    assert min(schedule) >= 1


def test_the_simplest_case_is_one_token_in_one_row():
    """What everything shrinks to."""
    case = find(cases(SPACE), lambda case: True)
    assert (case.tokens, case.schedule, case.seed) == (((0,),), (1,), 0)


@pytest.mark.parametrize("seed", seeds(3, 10))
def test_a_short_run_reaches_every_family_and_setting(seed):
    """100 cases hold every value of every setting, both dtypes, several rows, rows past the
    window, and every family of schedules."""
    drawn = drawn_cases(seed, 100)
    for field, values in SPACE.choices.items():
        assert {case.config[field] for case in drawn} == set(values), field
    assert {case.dtype for case in drawn} == {"float32", "float64"}
    assert {case.batch for case in drawn} >= {1, 2, 3}
    assert sum(case.config["window"] is not None and case.length > 7 for case in drawn) >= 5
    plain = Counter(family(case) for case in drawn if case.is_simple)
    assert min(plain[name] for name in ("token by token", "prefill + decode", "chunks")) >= 3
    had = Counter(word for case in drawn for word in features_of(case))
    assert set(had) == {*FEATURES}
    assert min(had.values()) >= 2


@pytest.mark.parametrize("seed", seeds(5, 20))
def test_a_run_of_twenty_holds_every_setting(seed):
    """Windows, grouped heads, both dtypes: nothing is left to luck in a short run."""
    drawn = draw_cases(SPACE, seed, 20)
    assert len(drawn) == 20
    assert {case.dtype for case in drawn} == {"float32", "float64"}
    for field, values in SPACE.choices.items():
        assert {case.config[field] for case in drawn} == set(values), field


@pytest.mark.parametrize("seed", seeds(3, 5))
def test_most_cases_read_their_cache(seed):
    """One in eight, and the very first, may be of a single call."""
    drawn = drawn_cases(seed, 100)
    assert 0 < sum(not case.reads_cache for case in drawn) <= 20
    assert sum(case.length >= 8 for case in drawn) >= 50


@pytest.mark.parametrize("seed", seeds(2, 5))
def test_what_finds_most_bugs_is_not_left_to_luck(seed):
    """A crop, a restore, padding or a call of several tokens when small windows are full."""
    drawn = draw_cases(SPACE, seed, 200)
    late = Counter(
        kind
        for case in drawn
        for step in case.steps()
        if step.before and len(step.before[0]) >= 7
        for kind in [type(step.operation).__name__ if step.operation else step.kind]
    )
    assert min(late[kind] for kind in ("Crop", "Restore", "Padded", "extend")) >= 4, late


def test_nothing_is_drawn_that_is_not_offered():
    """A subject of three methods gets plain cases and more caches, one that crops is cropped, and
    so on."""
    plain = draw_cases(replace(SPACE, offers=frozenset()), 0, 100)
    had = {word for case in plain for word in features_of(case)}
    assert had == {"extend", "decode", "new", "switch", "several rows"}
    crops = draw_cases(replace(SPACE, offers=frozenset({"crop"})), 0, 100)
    had = {word for case in crops for word in features_of(case)}
    assert had == {"extend", "decode", "crop", "new", "switch", "several rows"}


def test_padding_is_given_positions_unless_they_follow_from_the_mask():
    """A mask alone does not tell every decoder where a token stands."""
    offers = frozenset({"mask", "positions"})
    for known, always in ((offers, True), (offers | {"positions_from_mask"}, False)):
        drawn = draw_cases(replace(SPACE, offers=known), 0, 100)
        padded = [c for c in drawn if features_of(c) & {"left padding", "right padding"}]
        assert len(padded) >= 10
        assert all("mask" in case.given for case in padded)
        assert all("positions" in case.given for case in padded) is always


def test_a_space_of_single_calls_is_drawn_all_the_same():
    """Balance is a wish, not a wall."""
    assert len(draw_cases(replace(SPACE, max_length=1), 0, 20)) == 20


def test_the_modules_that_are_loaded_do_not_change_what_is_drawn(tmp_path):
    """Hypothesis takes constants from them, and a worker has not loaded what its parent has."""
    script = (
        "from kvfuzz.search.rounds import draw_cases\n"
        "from kvfuzz.search.strategies import space_of\n"
        "from kvfuzz.subjects.loading import load\n"
        "print(draw_cases(space_of(load('zoo')), 7, 60))\n"
    )
    (tmp_path / "constants.py").write_text(f"NUMBERS = {list(range(1000, 60000, 97))}\n")
    printed = {
        subprocess.run(
            [sys.executable, "-c", before + script],
            capture_output=True, text=True, check=True, cwd=tmp_path,
        ).stdout
        for before in ("", "import constants\n")
    }  # fmt: skip
    assert len(printed) == 1


@pytest.mark.parametrize(("owner", "name"), PATCHED)
def test_hypothesis_still_has_the_private_names_that_are_replaced(owner, name):
    """Renamed or gone, what a seed draws would change: see `kvfuzz.search.hypothesis_private`."""
    real = getattr(owner, name)
    with independent_draws():
        assert getattr(owner, name) is not real
        assert getattr(owner, name)() is None
    assert getattr(owner, name) is real


def test_cases_are_drawn_while_the_private_names_are_replaced():
    """Each case independently of earlier ones and of constants in modules, also while it is run."""
    found = []

    def examine(case):
        found.extend(getattr(owner, name)() for owner, name in PATCHED)

    run_strategy(SPACE, 0, 5, examine)
    assert found == [None] * 5 * len(PATCHED)


def test_a_private_name_that_is_gone_is_warned_of(monkeypatch):
    """The other is replaced all the same."""
    monkeypatch.delattr(*PATCHED[0])
    gone = pytest.warns(UserWarning, match="has no HypothesisProvider._maybe_draw_constant")
    with gone, independent_draws():
        assert getattr(*PATCHED[1])() is None


def test_the_same_seed_draws_the_same_cases_and_another_draws_others():
    """One worker, another worker, tomorrow."""
    assert draw_cases(SPACE, 5, 60) == draw_cases(SPACE, 5, 60)
    assert draw_cases(SPACE, 5, 60) != draw_cases(SPACE, 6, 60)


def test_seeds_count_in_ci_too():
    """Where it sees CI, Hypothesis derandomises what has no seed: every shard would draw the same
    cases."""
    script = (
        "from kvfuzz.subjects.loading import load; from kvfuzz.search.rounds import draw_cases;"
        "from kvfuzz.search.strategies import space_of; s = space_of(load('zoo'));"
        "print(draw_cases(s, 1, 20) == draw_cases(s, 1, 20), draw_cases(s, 1, 20) == "
        "draw_cases(s, 2, 20))"
    )
    done = subprocess.run(
        [sys.executable, "-c", script],
        capture_output=True,
        text=True,
        env={**os.environ, "CI": "true"},
        check=True,
    )
    assert done.stdout.split() == ["True", "False"]


def test_more_cases_under_a_seed_begin_with_the_fewer():
    """Whole rounds are the same however many follow."""
    assert draw_cases(SPACE, 1, 150)[:100] == list(drawn_cases(1, 100))


def test_a_longest_row_past_the_subjects_limit_is_refused():
    """The limit is named."""
    with pytest.raises(UsageError, match=r"rows of 65 tokens are longer than zoo takes"):
        space_of(load("zoo"), 65)


def test_a_subject_of_short_rows_is_drawn_short_rows():
    """max_length bounds what is drawn."""
    space = space_of(load("tests.subjects.models:ShortSighted"))
    assert space.max_length == 3


@settings(max_examples=20)
@given(cases(Space(2, 2, ("float32",))))
def test_a_vocabulary_of_two_still_gives_different_rows(case):
    """There are at most two rows of one token then."""
    assert len(set(case.tokens)) == case.batch <= 2
