"""From how a state differs to its cause, on states made by hand."""

from dataclasses import replace

import pytest
import torch

from kvfuzz.localize.causes import CAUSES, Facts, advice, find_cause
from kvfuzz.localize.lookalikes import WrongState, find_lookalike, to_table
from kvfuzz.subjects.trace import KINDS, Site

ROWS, LENGTH, WIDTH = 3, 5, 8
GENERATOR = torch.Generator().manual_seed(3)
RIGHT = torch.randn(ROWS, LENGTH, WIDTH, generator=GENERATOR, dtype=torch.float64)
OTHER = torch.randn(ROWS, LENGTH, WIDTH, generator=GENERATOR, dtype=torch.float64)
CLEAN = WrongState(RIGHT, RIGHT, tuple(range(LENGTH)), {3: OTHER})
KV = Site("kv", 1)


def wrong(change):
    """The clean state with `change` done to a copy of what was found."""
    found = RIGHT.clone()
    change(found)
    return replace(CLEAN, found=found)


def at_one(row, place, values):
    def change(found):
        found[row, place] = values(found[row, place])

    return wrong(change)


def of_a_row(row, values):
    def change(found):
        found[row] = values(found[row])

    return wrong(change)


def rotated(values):
    """Each pair of features turned by an angle."""
    turn = torch.tensor([[0.8, -0.6], [0.6, 0.8]], dtype=torch.float64)
    return (values.unflatten(-1, (-1, 2)) @ turn.T).flatten(-2)


STATES = {
    "rounded": (of_a_row(1, lambda v: v.to(torch.bfloat16).double()), "dtype", "bfloat16"),
    "rounded finely": (of_a_row(1, lambda v: v.float().double()), "dtype", "float32"),
    "other layer": (of_a_row(2, lambda v: OTHER[2]), "layer index", "layer 4"),
    "other row": (of_a_row(0, lambda v: RIGHT[2]), "batch row", "row 0 has what row 2"),
    "other position": (
        at_one(1, 4, lambda v: RIGHT[1, 2]), "append slot", "position 4 has what position 2",
    ),
    "nothing": (at_one(1, 4, torch.zeros_like), "append slot", "nothing was written"),
    "scaled": (of_a_row(1, lambda v: 1.5 * v), "scale", "1.5 times"),
    "negative": (of_a_row(1, lambda v: -v), "scale", "-1 times"),
    "heads": (
        of_a_row(1, lambda v: v.unflatten(-1, (4, 2)).flip(1).flatten(1)), "head grouping", "heads",
    ),
    "rotated": (of_a_row(1, rotated), "rope scaling", "rotated"),
}  # fmt: skip


@pytest.mark.parametrize("name", STATES)
def test_a_resemblance_names_the_cause(name):
    """And says what shows it."""
    state, cause, words = STATES[name]
    assert find_lookalike(state)[0] == cause
    found, seen = find_cause(KV, 4, state, Facts())
    assert found == cause
    assert words in seen


def test_places_of_a_step_are_compared_with_their_positions():
    """Two new tokens at the positions 3 and 4, of which the last is that of position 1."""
    found = RIGHT[:, 3:].clone()
    found[0, 1] = RIGHT[0, 1]
    state = WrongState(found, RIGHT, (3, 4))
    assert find_lookalike(state) == ("append slot", "position 4 has what position 1 should have")


def test_an_index_says_what_it_is():
    """And what it should be."""
    right = torch.arange(5.0, dtype=torch.float64)[None, :, None]
    assert find_lookalike(WrongState(right[:, 4:] + 2, right, (4,))) == (
        "position index",
        "it is 6, and should be 4",
    )


def test_a_clean_state_is_like_nothing():
    """Also where its states are alike among themselves, and where nothing is known."""
    assert find_lookalike(CLEAN) is None
    same = RIGHT[:, :1].expand(-1, LENGTH, -1)
    assert find_lookalike(WrongState(same, same, tuple(range(LENGTH)))) is None
    nearly = replace(CLEAN, found=RIGHT * (1 + 1e-14))
    assert find_lookalike(nearly) is None
    assert find_lookalike(WrongState()) is None
    assert find_lookalike(WrongState(RIGHT[:, :, :3], RIGHT, tuple(range(LENGTH)))) is None


def test_noise_is_like_nothing():
    """A wrong state that is no other."""
    assert find_lookalike(of_a_row(1, lambda v: v + OTHER[0])) is None
    assert find_cause(KV, 4, of_a_row(1, lambda v: v + OTHER[0]), Facts()) == ("projection", "")


@pytest.mark.parametrize(
    ("site", "facts", "cause"),
    [
        (Site("cache", 0), Facts(operation="crop", operated=True), "stale state"),
        (Site("cache", 0), Facts(operation="reorder", operated=True), "batch row"),
        (Site("cache", 0), Facts(operation="fork", earlier=True), "stale state"),
        (Site("cache", 0), Facts(operation="fork"), "append slot"),
        (Site("cache", 0), Facts(recurrent=True), "recurrent state"),
        (Site("logits"), Facts(recurrent=True), "readout"),
        (Site("position"), Facts(rotary=True), "rope scaling"),
        (Site("attention", 0), Facts(window=4), "window"),
        (Site("attention", 0), Facts(window=5), "mask alignment"),
    ],
)
def test_where_it_is_like_nothing_the_facts_decide(site, facts, cause):
    """And after them the site."""
    assert find_cause(site, 4, WrongState(), facts)[0] == cause


@pytest.mark.parametrize("kind", KINDS)
def test_every_site_has_a_cause_and_an_advice(kind):
    """A sentence without holes."""
    site = Site(kind, None if kind in ("position", "final_norm", "logits") else 2)
    cause, seen = find_cause(site, 2, WrongState(), Facts())
    assert cause in CAUSES
    text = advice(cause, site, 0, 2, seen)
    assert "third token" in text
    assert "{" not in text
    assert "  " not in text


def test_a_table_is_rows_places_and_features():
    """Wherever the axes are; without an axis of rows there is one."""
    state = torch.arange(2.0 * 3 * 5 * 7).reshape(2, 3, 5, 7)
    found = to_table(state, 2, 0)
    assert found.shape == (2, 5, 21)
    assert found[1, 4].tolist() == state[1, :, 4].flatten().tolist()
    assert to_table(state.transpose(0, 2), 0, 2).shape == (2, 5, 21)
    assert to_table(state, 2, None).shape == (1, 5, 42)
    assert to_table(state[:, 0, :, 0], 1, 0).shape == (2, 5, 1)
