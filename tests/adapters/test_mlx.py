"""Decoders of mlx-lm: agreement, what is done to their caches, noise, settings and refusals."""

from __future__ import annotations

import pickle

import pytest
import torch

pytest.importorskip("mlx_lm")

from kvfuzz.case.case import Case
from kvfuzz.errors import InvalidSubject, UsageError
from kvfuzz.oracle.agreement import check
from kvfuzz.oracle.noise import logits_noise
from kvfuzz.search.hunt import fuzz
from kvfuzz.subjects.loading import Options
from kvfuzz.subjects.mlx import factory
from kvfuzz.subjects.tiny_fields import WINDOW

ROWS = ((5, 9, 2, 60, 31, 8, 8, 40, 1, 17), (3, 3, 50, 12, 7, 44, 29, 0, 63, 21))


def subject(model_type="llama", seed=1, **config):
    """A subject of `model_type`, float32."""
    return factory(model_type, Options()).build(seed, "float32", config)


def fed(made, cache, start, stop):
    """The logits of the columns `start` to `stop` of ROWS, and the cache."""
    return made.cached(torch.tensor(ROWS)[:, start:stop], cache)


@pytest.mark.parametrize("model_type", ["llama", "qwen2", "mixtral", "mamba"])
def test_the_paths_agree(model_type):
    """Grouped heads, biases, experts and a state alone: each says the same with its cache."""
    found = fuzz(factory(model_type, Options()), examples=40, seed=3)
    assert found.verdict == "agreed", found.counterexample


def test_rows_pass_a_window():
    """A rotating cache is known from one that keeps everything, and agrees past its window."""
    made = subject("cohere2")
    assert made.windows == [WINDOW, None]
    cache = made.new_cache(2)
    for column in range(10):
        _, cache = fed(made, cache, column, column + 1)
    windowed, whole = made.view(cache)
    assert windowed[0].shape == (2, 2, WINDOW, 8)
    assert whole[0].shape == (2, 2, 10, 8)
    assert check(made, Case(ROWS, (1,) * 10)).status == "agreed"


def test_a_view_shows_the_newest_last():
    """What is fed next stands behind what was held, which does not change."""
    made = subject()
    cache = made.new_cache(2)
    assert made.view(cache) == [None, None]
    _, cache = fed(made, cache, 0, 4)
    before = made.view(cache)
    _, cache = fed(made, cache, 4, 6)
    for old, new in zip(before, made.view(cache), strict=True):
        for held, held_now in zip(old, new, strict=True):
            assert torch.equal(held_now[:, :, :4], held)
            assert held_now.shape == (2, 2, 6, 8)


def test_a_crop_goes_back():
    """After a crop the same tokens give the same logits, and a crop of more leaves nothing."""
    made = subject()
    _, cache = fed(made, made.new_cache(2), 0, 4)
    first, cache = fed(made, cache, 4, 7)
    again, cache = fed(made, made.crop(cache, 3), 4, 7)
    assert torch.equal(first, again)
    anew, _ = fed(made, made.crop(cache, 100), 0, 4)
    assert torch.equal(anew, fed(made, made.new_cache(2), 0, 4)[0])


def test_a_state_cannot_be_cropped():
    """What the library cannot trim is refused before anything changes."""
    made = subject("mamba")
    _, cache = fed(made, made.new_cache(2), 0, 4)
    with pytest.raises(NotImplementedError, match="cannot trim"):
        made.crop(cache, 1)


def test_a_copy_is_independent():
    """The copy and the original both go on, with other tokens each."""
    made = subject()
    _, cache = fed(made, made.new_cache(2), 0, 4)
    twin = made.copy(cache)
    fed(made, cache, 7, 9)
    mine, _ = fed(made, twin, 4, 6)
    fresh, _ = fed(made, fed(made, made.new_cache(2), 0, 4)[1], 4, 6)
    assert torch.equal(mine, fresh)


@pytest.mark.parametrize("model_type", ["llama", "cohere2", "mamba"])
def test_what_was_saved_goes_on(model_type):
    """The bytes of the library's own file are pickled; it cannot save an empty cache."""
    made = subject(model_type)
    with pytest.raises(NotImplementedError, match="holds nothing"):
        made.save(made.new_cache(2))
    _, cache = fed(made, made.new_cache(2), 0, 7)
    restored = made.load(pickle.loads(pickle.dumps(made.save(cache))))
    assert torch.equal(fed(made, restored, 7, 10)[0], fed(made, cache, 7, 10)[0])


def test_noise_is_measured():
    """A perturbation of the weights moves the logits by about as much as rounding does."""
    made = subject()
    tokens = torch.tensor(ROWS)
    uncached = made.uncached(tokens)
    still, moved = made.perturbed(tokens, 2.0**-24, (None, 0))
    assert torch.equal(still, uncached.double())
    noise = logits_noise(made, ROWS, uncached, torch.float32)
    share = float(noise.max() / uncached.abs().max())
    assert 1e-8 < share < 1e-5
    assert not torch.equal(still, moved)
    assert torch.equal(uncached, made.uncached(tokens))


def test_a_seed_means_one_set_of_weights():
    """The same seed gives the same logits, another one others, and bfloat16 the same but for
    rounding."""
    tokens = torch.tensor(ROWS)
    first = subject(seed=1).uncached(tokens)
    assert torch.equal(first, subject(seed=1).uncached(tokens))
    assert not torch.allclose(first, subject(seed=2).uncached(tokens), atol=0.1)
    made = factory("llama", Options(dtype="bfloat16"))
    coarse = made.build(1, "bfloat16", {}).uncached(tokens)
    assert coarse.dtype == torch.bfloat16
    assert float((coarse - first).abs().max()) < 0.1 * float(first.abs().max())


def test_settings_reach_the_model():
    """A setting is a field of the model's arguments."""
    made = factory("llama", Options(config={"num_hidden_layers": 3, "vocab_size": 70}))
    built = made.build(0, "float32", {})
    assert len(built.new_cache(1)) == 3
    assert built.vocab_size == 70


@pytest.mark.parametrize(
    ("rest", "options", "error", "text"),
    [
        ("lama", Options(), InvalidSubject, "no model type 'lama' (did you mean llama"),
        ("cache", Options(), InvalidSubject, "mlx:cache is no model"),
        ("", Options(), InvalidSubject, "names no model"),
        ("llama", Options(config={"layers": 3}), UsageError, "no setting 'layers'"),
        ("llama", Options(dtype="float64"), UsageError, "does not run in float64"),
        ("nemotron", Options(), UsageError, "needs hidden_act"),
        ("llama", Options(config={"num_key_value_heads": 3}), UsageError, "cannot be built"),
    ],
)
def test_refusals(rest, options, error, text):
    """What cannot be is refused at the door, in one line."""
    with pytest.raises(error) as caught:
        factory(rest, options)
    assert text in str(caught.value)
    assert "\n" not in str(caught.value)
