"""Decoders of TransformerLens: clean agreement, padding, frozen calls, settings and refusals."""

from __future__ import annotations

import pickle

import pytest
import torch

pytest.importorskip("transformer_lens")

from kvfuzz.case.case import Case
from kvfuzz.case.schedule import Padded
from kvfuzz.errors import InvalidSubject, UsageError
from kvfuzz.oracle.agreement import check
from kvfuzz.subjects.loading import Options
from kvfuzz.subjects.transformer_lens import CHOICES, POSITIONS, factory

ROWS = ((5, 9, 2, 60, 31, 8, 8, 40, 1, 17), (3, 3, 50, 12, 7, 44, 29, 0, 63, 21))
EVERYTHING = {word: values[-1] for word, values in CHOICES.items()}


@pytest.fixture(autouse=True)
def _no_gradients():
    with torch.no_grad():
        yield


def subject(positions="rotary", dtype="float64", **config):
    """A subject with these positions and the simplest settings but for `config`."""
    made = factory(positions, Options())
    return made.build(1, dtype, {**made.first_config(), **config})


def fed(made, cache, start, stop):
    """The logits of the columns `start` to `stop` of ROWS, and the cache."""
    return made.cached(torch.tensor(ROWS)[:, start:stop], cache)


@pytest.mark.parametrize("dtype", ["float64", "float32"])
@pytest.mark.parametrize("positions", POSITIONS)
def test_the_paths_agree(positions, dtype):
    """Each kind of positions, plain and with grouped heads, a window and frozen calls."""
    made = factory(positions, Options())
    for config in ({}, EVERYTHING):
        config = {**made.first_config(), **config}
        for schedule in ((10,), (4, 1, 1, 3, 1), (1,) * 10):
            case = Case(ROWS, schedule, dtype=dtype, config=config)
            assert check(made.subject(case), case).status == "agreed", case


@pytest.mark.parametrize("positions", POSITIONS)
def test_padding_before_all_text_is_ignored(positions):
    """A row that is padded on the left says what it says alone, whatever the padding holds."""
    made = factory(positions, Options())
    config = made.first_config()
    case = Case(ROWS, (Padded(6, "left", (3, 0)), 1, 3), config=config, given=("mask",))
    assert check(made.subject(case), case).status == "agreed"


def test_padding_between_text_is_refused_where_slots_are_counted():
    """ALiBi takes it for a distance; what was held is as it was."""
    made = subject("alibi")
    _, cache = fed(made, made.new_cache(2), 0, 4)
    before = made.view(cache)
    mask = torch.ones(2, 6, dtype=torch.bool)
    mask[0, 4] = False
    with pytest.raises(NotImplementedError, match="between two tokens"):
        made.cached(torch.tensor(ROWS)[:, 4:6], cache, mask=mask)
    assert torch.equal(before[0][0], made.view(cache)[0][0])


def test_a_frozen_call_leaves_nothing():
    """Rehearsed calls give the logits and the cache that calls alone give."""
    logits = []
    for rehearsed in (False, True):
        made = subject(rehearsed=rehearsed)
        _, cache = fed(made, made.new_cache(2), 0, 4)
        logits.append(fed(made, cache, 4, 7)[0])
        assert made.view(cache)[0][0].shape == (2, 4, 7, 8)
    assert torch.equal(*logits)


def test_a_copy_and_what_was_saved_go_on():
    """Both are independent of the cache that they were made of."""
    made = subject()
    _, cache = fed(made, made.new_cache(2), 0, 4)
    others = [made.copy(cache), made.load(pickle.loads(pickle.dumps(made.save(cache))))]
    wanted, _ = fed(made, cache, 4, 7)
    for other in others:
        assert torch.equal(fed(made, other, 4, 7)[0], wanted)


def test_a_seed_means_one_set_of_weights():
    """Subjects of two seeds share a module, and each finds its own weights in it."""
    made = factory("standard", Options())
    one, two = (made.build(seed, "float64", made.first_config()) for seed in (1, 2))
    tokens = torch.tensor(ROWS)
    first, second = one.uncached(tokens), two.uncached(tokens)
    assert torch.equal(first, one.uncached(tokens))
    assert not torch.allclose(first, second, atol=0.1)


def test_settings_reach_the_model():
    """A setting is a field of the configuration."""
    made = factory("standard", Options(config={"n_layers": 3, "d_vocab": 70}))
    built = made.build(0, "float64", made.first_config())
    assert len(built.new_cache(1).entries) == 3
    assert built.vocab_size == 70


@pytest.mark.parametrize(
    ("rest", "options", "error", "text"),
    [
        ("alibis", Options(), InvalidSubject, "no positions 'alibis' (did you mean alibi?)"),
        ("", Options(), InvalidSubject, "standard, rotary, shortformer, alibi"),
        ("alibi", Options(config={"layers": 3}), UsageError, "no setting 'layers'"),
        ("alibi", Options(config={"act_fn": "none"}), UsageError, "cannot have"),
    ],
)
def test_refusals(rest, options, error, text):
    """What cannot be is refused at the door, in one line."""
    with pytest.raises(error) as caught:
        factory(rest, options)
    assert text in str(caught.value)
    assert "\n" not in str(caught.value)
