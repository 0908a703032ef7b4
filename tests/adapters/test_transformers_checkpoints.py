"""Saved checkpoints of transformers: their weights, settings, and what is refused."""

from __future__ import annotations

import json
from collections import OrderedDict
from types import SimpleNamespace

import pytest
import torch

from kvfuzz.errors import InvalidSubject, UsageError
from kvfuzz.subjects.loading import Options, load
from kvfuzz.subjects.tensors import LARGE
from kvfuzz.subjects.transformers.factory import _make_room, factory
from tests.adapters.agreement import cases, excess, uncached

if not hasattr(pytest.importorskip("transformers.cache_utils"), "DynamicLayer"):
    pytest.skip("the caches of this release have no layers to look at", allow_module_level=True)


@pytest.fixture
def checkpoint(tmp_path):
    """A saved tiny llama, and its subject."""
    subject = factory("llama", Options()).build(11, "float32", {})
    subject.model.save_pretrained(tmp_path / "saved")
    return str(tmp_path / "saved"), subject


def test_a_checkpoint_keeps_its_weights(checkpoint):
    """A saved model is loaded with its real weights, whatever the seed, and agrees."""
    path, original = checkpoint
    made = load(f"transformers:{path}")
    assert not made.seeded
    assert "use_sliding_window" not in made.choices
    for seed in (1, 2):
        subject = made.build(seed, "float32", {"attn": "sdpa"})
        assert torch.allclose(uncached(subject), uncached(original), atol=1e-5)
    for case in cases(made, 4):
        assert excess(made, case) < 1, case


def test_a_checkpoint_takes_settings_that_fit_its_weights(checkpoint):
    """A setting overrides what the checkpoint says, and is refused if the weights do not fit."""
    path, _ = checkpoint
    made = factory(path, Options(config={"rms_norm_eps": 0.5}))
    assert made.build(0, "float32", {}).model.config.rms_norm_eps == 0.5
    with pytest.raises(UsageError, match=r'cannot have {"hidden_size": 48}') as refusal:
        factory(path, Options(config={"hidden_size": 48}))
    assert "\n" not in str(refusal.value)


def test_a_checkpoint_with_remote_code_is_refused(tmp_path):
    """A checkpoint that needs its own code is refused, and the code is not run."""
    (tmp_path / "config.json").write_text(
        json.dumps({"model_type": "mine", "auto_map": {"AutoModelForCausalLM": "code.Mine"}})
    )
    (tmp_path / "code.py").write_text("raise SystemExit('ran')")
    with pytest.raises(InvalidSubject, match="needs its own remote code, which kvfuzz never runs"):
        factory(str(tmp_path), Options())


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (None, "is no checkpoint: it has no config.json"),
        ("{", "cannot be read: JSONDecodeError"),
        ("[]", "should hold an object, got list"),
        ("{}", "has no model type 'None'"),
        ('{"model_type": "llama"}', "cannot be built in float32: OSError"),
    ],
)
def test_a_broken_checkpoint_is_refused(tmp_path, text, message):
    """A directory that holds no checkpoint is refused in one line that says what is wrong."""
    if text is not None:
        (tmp_path / "config.json").write_text(text)
    with pytest.raises(InvalidSubject, match=message) as refusal:
        factory(str(tmp_path), Options())
    assert "\n" not in str(refusal.value)


def test_a_checkpoint_keeps_no_tables_for_drawing_weights(checkpoint):
    """They would take six times its memory, and no seed draws its weights."""
    made = load(f"transformers:{checkpoint[0]}")
    subject = made.build(0, "float32", made.first_config())
    assert uncached(subject).isfinite().all()
    assert "_spread" not in vars(subject._module)


@pytest.mark.parametrize(("bytes_each", "kept"), [(1, 15), (LARGE // 2, 1), (LARGE, 0)])
def test_a_large_module_is_dropped_before_the_next_is_built(bytes_each, kept):
    """Small ones are kept, since building one takes longer than a case."""
    modules = OrderedDict((number, SimpleNamespace(bytes=bytes_each)) for number in range(16))
    _make_room(modules)
    assert list(modules) == list(range(16))[16 - kept :]
