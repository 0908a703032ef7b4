"""Promises that hold in every release of transformers since 4.24, whatever its caches look like."""

from __future__ import annotations

import inspect

import pytest
import torch

from kvfuzz.errors import InvalidSubject
from kvfuzz.subjects.loading import Options
from kvfuzz.subjects.transformers.factory import factory
from tests.adapters.cache_programs import run

pytest.importorskip("transformers")

ALLOWED = 1e-9  # relative, in float64
# What no release is known to get wrong.
SOUND = ("reorder", "copy", "save")
MODEL_TYPES = ("gpt2", "llama", "bart", "t5")


def made(model_type):
    """The factory of float64 subjects; skips where the release has no such model."""
    try:
        return factory(model_type, Options(dtype="float64"))
    except InvalidSubject as error:
        if "has no " not in str(error):
            raise
        pytest.skip(str(error))


def subjects(model_type):
    """A subject of each kind of cache that is exact, and its number."""
    found = made(model_type)
    assert "own" in found.choices["cache"]
    kinds = [kind for kind in found.choices["cache"] if kind != "quantised"]
    for seed, kind in enumerate(kinds):
        yield seed, found.build(seed, "float64", {**found.first_config(), "cache": kind})


@pytest.mark.parametrize("model_type", MODEL_TYPES)
def test_rows_can_be_moved_copied_and_saved(model_type):
    """The operations that all releases do right keep every row's logits."""
    for seed, subject in subjects(model_type):
        for more in range(3):
            outcome = run(subject, seed + more, only=SOUND)
            assert outcome.worst < ALLOWED, outcome.where
            assert outcome.done["feed"] > 2


@pytest.mark.parametrize("padded", ["left", "right"])
def test_padded_rows_say_what_they_say_alone(padded):
    """With a mask and positions, padding on either side changes nothing."""
    for seed, subject in subjects("gpt2"):
        taken = set(inspect.signature(subject.cached).parameters) - {"tokens", "cache"}
        taken -= {"logits_to_keep"}  # which depends on the release
        assert taken == {"mask", "positions"}
        outcome = run(subject, seed, given=tuple(taken), padded=padded, only=SOUND)
        assert outcome.worst < ALLOWED, outcome.where


@pytest.mark.parametrize("beams", [1, 3])
@pytest.mark.parametrize("model_type", ["gpt2", "bart", "t5"])
def test_generation_needs_no_cache(model_type, beams):
    """Greedy and beam search choose the same tokens with a cache as without."""
    for _, subject in subjects(model_type):
        tokens = torch.tensor([[5, 9, 41], [17, 2, 60]])
        found, logits = subject.generate(tokens, 6, beams, cached=True)
        expected, by = subject.generate(tokens, 6, beams, cached=False)
        assert found.shape == (2, 6)
        assert torch.equal(found, expected)
        if logits is not None:
            assert (logits - by).abs().max() < ALLOWED * by.abs().max()
