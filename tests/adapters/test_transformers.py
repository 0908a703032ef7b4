"""Decoders of the real transformers library: clean agreement, seeds, settings and refusals."""

from __future__ import annotations

import os
import random
import subprocess
import sys
from dataclasses import replace
from typing import Any

import pytest
import torch

from kvfuzz.case.case import KEEP, Case
from kvfuzz.errors import InvalidSubject, UsageError
from kvfuzz.oracle.agreement import check
from kvfuzz.subjects.loading import Options, load
from kvfuzz.subjects.run import run_uncached
from kvfuzz.subjects.transformers import build
from kvfuzz.subjects.transformers.factory import factory
from kvfuzz.subjects.transformers.tiny import WINDOW
from tests.adapters.agreement import ALLOWED, cases, excess, uncached

AutoModelForCausalLM = pytest.importorskip("transformers").AutoModelForCausalLM
if not hasattr(pytest.importorskip("transformers.cache_utils"), "DynamicLayer"):
    pytest.skip("the caches of this release have no layers to look at", allow_module_level=True)

MODEL_TYPES = (
    "gpt2",
    "llama",
    "mistral",
    "qwen2",
    "gemma2",
    "gpt_neo",
    "gpt_neox",
    "bloom",
    "falcon",
)


@pytest.mark.parametrize("attn", ["eager", "sdpa"])
@pytest.mark.parametrize("model_type", MODEL_TYPES)
def test_the_paths_agree(model_type, attn):
    """Each of the listed architectures says the same with its cache as without it."""
    made = factory(model_type, Options())
    if attn not in made.choices["attn"]:
        pytest.skip(f"this release has {model_type} without {attn}")
    for case in cases(made, 6, attn=attn):
        assert excess(made, case) < 1, case


def test_a_windowed_layer_is_drawn_and_agrees():
    """qwen2 draws its sliding window, and agrees with it too."""
    made = factory("qwen2", Options())
    assert made.choices["use_sliding_window"] == (False, True)
    for case in cases(made, 4, use_sliding_window=True):
        assert excess(made, case) < 1, case
    windowed, full = (
        made.build(0, "float64", {"use_sliding_window": value}) for value in (True, False)
    )
    same = (uncached(windowed) == uncached(full)).all(dim=-1)
    assert same[:, :WINDOW].all()
    assert not same[:, WINDOW:].any()


@pytest.mark.parametrize("model_type", MODEL_TYPES)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_a_corrupted_cache_is_seen(model_type, dtype):
    """Values of one layer that are off by a thousandth are far above the tolerance."""
    subject = factory(model_type, Options()).build(3, dtype, {})
    rows = torch.tensor([[9, 41, 3, 27, 60, 14]])
    expected = subject.uncached(rows)
    _, cache = subject.cached(rows[:, :-1], subject.new_cache(1))
    cache.own.layers[0].values.mul_(1.001)
    actual, _ = subject.cached(rows[:, -1:], cache)
    difference = (actual[:, 0] - expected[:, -1]).abs().max() / expected[:, -1].abs().max()
    assert difference > (1e-5 if dtype == "float64" else ALLOWED * torch.finfo(torch.float32).eps)


def test_a_cache_rounded_to_half_precision_is_seen_in_float64():
    """Promotion does not hide a cache that keeps its values in bfloat16."""
    subject = factory("llama", Options()).build(3, "float64", {})
    rows = torch.tensor([[9, 41, 3, 27, 60, 14]])
    _, cache = subject.cached(rows[:, :-1], subject.new_cache(1))
    values = cache.own.layers[0].values
    values.copy_(values.bfloat16().double())
    actual, _ = subject.cached(rows[:, -1:], cache)
    assert (actual[:, 0] - subject.uncached(rows)[:, -1]).abs().max() > 1e-6


@pytest.mark.parametrize("dtype", ["float32", "float64", "bfloat16", "float16"])
def test_logits_have_the_dtype_that_was_asked_for(dtype):
    """A dtype that the user fixes is the only one, and both paths compute in it."""
    made = factory("llama", Options(dtype=dtype))
    assert made.dtypes == (dtype,)
    subject = made.build(0, dtype, {})
    tokens = torch.tensor([[1, 2, 3]])
    assert subject.uncached(tokens).dtype == getattr(torch, dtype)
    logits, cache = subject.cached(tokens, subject.new_cache(1))
    assert logits.dtype == cache.own.layers[0].keys.dtype == getattr(torch, dtype)


def test_rotary_frequencies_are_not_rounded_to_half_precision():
    """In bfloat16 the rotary frequencies stay in float32, as the library loads them."""
    subject = factory("llama", Options(dtype="bfloat16")).build(0, "bfloat16", {})
    frequencies = subject.model.model.rotary_emb.inv_freq
    assert frequencies.dtype == torch.float32
    exact = 10000.0 ** -(torch.arange(0, 8, 2, dtype=torch.float64) / 8)
    assert torch.allclose(frequencies.double(), exact, rtol=1e-6, atol=0)


def test_a_seed_means_the_same_weights():
    """One seed gives the same logits each time, another seed others."""
    one, again = factory("gpt2", Options()), factory("gpt2", Options())
    assert torch.equal(
        uncached(one.build(5, "float32", {})), uncached(again.build(5, "float32", {}))
    )
    assert not torch.equal(
        uncached(one.build(5, "float32", {})), uncached(one.build(6, "float32", {}))
    )


def test_a_seed_means_the_same_weights_in_every_dtype():
    """The float32 weights are the float64 weights, rounded."""
    made = factory("llama", Options())
    single = made.build(5, "float32", {}).model.state_dict()
    double = made.build(5, "float64", {}).model.state_dict()
    assert single.keys() == double.keys()
    for name, weight in single.items():
        assert torch.equal(weight, double[name].float()), name


def test_subjects_of_one_module_keep_their_own_weights():
    """Subjects that share a module, used in turns, each see the weights of their own seed."""
    made = factory("llama", Options())
    first = made.build(1, "float32", {})
    before = uncached(first)
    second = made.build(2, "float32", {})
    other = uncached(second)
    assert first._module is second._module
    tokens = torch.tensor([[3, 1, 4, 1, 5, 9, 2, 6]])
    _, cache = first.cached(tokens[:, :4], first.new_cache(1))
    _, cache_of_second = second.cached(tokens[:, :4], second.new_cache(1))
    for subject, kept in ((first, cache), (second, cache_of_second)):
        logits, _ = subject.cached(tokens[:, 4:], kept)
        assert torch.allclose(logits, subject.uncached(tokens)[:, 4:], atol=1e-4)
    assert torch.equal(uncached(first), before)
    assert torch.equal(uncached(second), other)


@pytest.mark.parametrize("model_type", MODEL_TYPES)
def test_no_weight_is_trivial(model_type):
    """No parameter is constant, so that no skipped projection, gain or bias goes unseen."""
    model = factory(model_type, Options()).build(0, "float32", {}).model
    for name, parameter in model.named_parameters():
        assert parameter.std() > 0.02, name


def test_tied_weights_stay_tied():
    """The readout that shares the embedding's weights shares them after every draw."""
    made = factory("gpt2", Options())
    for seed in (1, 2):
        model = made.build(seed, "float64", {}).model
        assert model.lm_head.weight is model.transformer.wte.weight


def test_global_random_numbers_are_untouched():
    """Building and drawing leave the global generators as they were."""
    before, plain = torch.random.get_rng_state(), random.getstate()
    made = factory("qwen2", Options())
    for seed in (1, 2):
        uncached(made.build(seed, "float64", {"attn": "eager"}))
    assert torch.equal(torch.random.get_rng_state(), before)
    assert random.getstate() == plain


def test_nothing_of_promotion_stays_behind():
    """A float64 case leaves float32 as the default dtype, also when the model raises."""
    subject = factory("gpt2", Options()).build(1, "float64", {})
    uncached(subject)
    with pytest.raises(IndexError):
        subject.uncached(torch.tensor([[10_000]]))
    assert torch.get_default_dtype() == torch.float32


def test_the_network_is_switched_off():
    """The environment says to stay offline before the library is imported."""
    code = (
        "import os; os.environ.pop('HF_HUB_OFFLINE', None); import sys; "
        "from kvfuzz.subjects.transformers.factory import factory; "
        "from kvfuzz.subjects.loading import Options; "
        "assert 'transformers' not in sys.modules; factory('gpt2', Options()); "
        "import huggingface_hub.constants as c; assert c.HF_HUB_OFFLINE is True"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""


def test_mistral_has_its_window():
    """A token as far back as the window is wide cannot be seen: only nearer ones change logits."""
    made = factory("mistral", Options(config={"num_hidden_layers": 1}))
    subject = made.build(0, "float64", {})
    assert subject.model.config.sliding_window == WINDOW
    row = [5, 17, 29, 41, 53, 2, 14, 26, 38, 50]
    changed = [6, *row[1:]]
    logits = run_uncached(subject, [row, changed])
    same = (logits[0] == logits[1]).all(dim=-1)
    assert same.tolist() == [False] * WINDOW + [True] * (len(row) - WINDOW)


def test_gemma2_alternates_its_windows():
    """The two tiny layers of gemma2 are one with a window and one without."""
    config = factory("gemma2", Options()).build(0, "float32", {}).model.config
    assert config.layer_types == ["sliding_attention", "full_attention"]
    assert config.sliding_window == WINDOW


def test_gpt_neo_alternates_its_windows():
    """Of layers whose kinds are listed in runs, the first two are kept: one global, one local."""
    made = factory("gpt_neo", Options())
    config = made.build(0, "float32", {}).model.config
    assert config.attention_layers == ["global", "local"]
    assert config.window_size == WINDOW
    deeper = factory("gpt_neo", Options(config={"num_layers": 5})).build(0, "float32", {})
    assert deeper.model.config.attention_layers == ["global", "local"] * 2 + ["global"]


@pytest.mark.parametrize("model_type", MODEL_TYPES)
def test_the_tiny_model_is_tiny(model_type):
    """Each architecture is found small by its own field names, and its attributes say so."""
    made = factory(model_type, Options())
    subject = made.build(0, "float32", {})
    assert (subject.vocab_size, subject.width) == (64, 32)
    assert subject.max_length == (None if model_type == "bloom" else 64)
    assert sum(p.numel() for p in subject.model.parameters()) < 60_000
    assert subject.model.config.num_hidden_layers == 2
    assert not subject.model.training
    assert made.seeded


def test_a_decoder_that_is_made_of_parts_is_tiny_too():
    """Each part has a configuration of its own, and its tables of hashes have billions of
    parameters by default. Its cache fails in this release: that is a finding, not a refusal."""
    pytest.importorskip("transformers.models.blt")
    factory = load("transformers:blt", Options(config={"encoder_config": {"num_hidden_layers": 1}}))
    case = Case(((1, 2, 3),), (3,), dtype="float32", config=factory.first_config())
    model = factory.subject(case).model
    assert sum(parameter.numel() for parameter in model.parameters()) < 1_000_000
    assert model.config.encoder_config.num_hidden_layers == 1
    assert model.config.decoder_config.hidden_size == model.config.global_config.hidden_size == 32
    assert run_uncached(factory.subject(case), case.tokens).shape == (
        1,
        3,
        factory.limits().vocab_size,
    )


def test_settings_reach_the_configuration():
    """A setting is found under the standard name and under the model's own, nested ones too."""
    standard = factory("gpt2", Options(config={"hidden_size": 48, "attn": "eager"}))
    own = factory("gpt2", Options(config={"n_embd": 48}))
    assert standard.build(0, "float32", {}).width == own.build(0, "float32", {}).width == 48
    assert "attn" not in standard.choices
    kind = standard.choices["cache"][0]
    assert standard.first_config() == {"hidden_size": 48, "attn": "eager", "cache": kind}
    llama = factory("llama", Options(config={"num_attention_heads": 2, "head_dim": 4}))
    assert llama.build(0, "float32", {}).model.model.layers[0].self_attn.q_proj.weight.shape[0] == 8
    wide = factory("mistral", Options(config={"sliding_window": None}))
    assert wide.build(0, "float32", {}).model.config.sliding_window is None


def test_the_drawn_attention_is_the_one_that_runs():
    """The attention of a case reaches the model."""
    made = factory("llama", Options())
    for attn in made.choices["attn"]:
        assert made.build(0, "float32", {"attn": attn}).model.config._attn_implementation == attn


def test_padding_is_no_ordinary_token():
    """A model that counts positions by what is not padding agrees on every drawn token."""
    made = factory("roberta", Options())
    for case in cases(made, 6):
        assert excess(made, case) < 1, case


@pytest.mark.parametrize("name", ["transformers", "transformers:"])
def test_an_empty_name_is_explained(name):
    """Naming the library alone is answered with what to write."""
    with pytest.raises(InvalidSubject, match=r"write transformers:MODEL_TYPE .*:DIRECTORY"):
        load(name)


@pytest.mark.parametrize(
    ("rest", "message"),
    [
        ("lama", r"has no model type 'lama' \(did you mean .*llama.*\?\): write"),
        ("vit", "has no language model 'vit'"),
        ("openai-gpt", r"keeps no cache: OpenAIGPTLMHeadModel.forward takes none of"),
        ("git", r"holds more than a decoder|has [\d,]+ parameters"),
    ],
)
def test_what_is_no_decoder_with_a_cache_is_refused(rest, message):
    """A name that cannot be a subject is refused in one line, with near matches."""
    with pytest.raises(InvalidSubject, match=message) as refusal:
        factory(rest, Options())
    assert "\n" not in str(refusal.value)


@pytest.mark.parametrize(
    ("rest", "config", "message"),
    [
        ("llama", {"hiden_size": 8}, r"has no setting 'hiden_size' \(did you mean hidden_size"),
        (
            "llama",
            {"attn": "sdp"},
            r"no attention 'sdp' \(did you mean sdpa\?\): choose from eager",
        ),
        ("bloom", {"attn": "sdpa"}, "bloom has no attention 'sdpa'.*: choose from eager$"),
        (
            "llama",
            {"cache": "statik"},
            r"no cache 'statik' \(did you mean static\?\): choose from ",
        ),
        ("gpt2", {"cache": "recording"}, "cannot have the cache recording: Unavailable: "),
        ("gpt2", {"n_head": 5}, 'cannot have {"n_head": 5}: '),
        ("llama", {"hidden_act": "none"}, 'cannot have {"hidden_act": "none"}: '),
    ],
)
def test_a_setting_that_cannot_be_had_is_refused(rest, config, message):
    """An unknown setting, and one that the library refuses, end in one line at the door."""
    with pytest.raises(UsageError, match=message) as refusal:
        factory(rest, Options(config=config))
    assert "\n" not in str(refusal.value)


def test_a_large_model_is_refused_before_it_is_built(monkeypatch):
    """A model that stays large is refused by its parameter count, naming its largest matrix."""
    monkeypatch.setattr(build, "MOST_PARAMETERS", 1000)
    with pytest.raises(
        InvalidSubject, match=r"parameters, more than 1,000, .*c_attn.weight \[32, 96\]"
    ):
        factory("gpt2", Options())


def test_a_model_that_cannot_be_sized_in_advance_is_built(monkeypatch):
    """A model that cannot be made without memory, to count its parameters, is made with it."""
    real = AutoModelForCausalLM.from_config

    def reading(config: Any, **asked: Any) -> Any:
        torch.zeros(1).item()  # raises where tensors have no memory
        return real(config, **asked)

    monkeypatch.setattr(AutoModelForCausalLM, "from_config", reading)
    assert factory("gpt2", Options()).seeded


def test_without_transformers_the_refusal_says_how_to_install_it(monkeypatch):
    """Where the library is missing, the refusal says what to install."""
    monkeypatch.setitem(sys.modules, "transformers", None)
    with pytest.raises(InvalidSubject) as refusal:
        factory("llama", Options())
    assert str(refusal.value) == "transformers is not installed: pip install 'kvfuzz[transformers]'"


def test_offline_is_in_the_environment():
    """Whoever starts a process from here stays offline too."""
    factory("gpt2", Options())
    assert os.environ["HF_HUB_OFFLINE"] == "1"


def test_a_model_that_keeps_the_last_logits_offers_it(monkeypatch):
    """The number reaches the forward, and one that is ignored diverges."""
    made = factory("llama", Options())
    assert KEEP in made.limits().offers
    case = Case(((1, 2, 3, 4, 5, 6),), (4, 2), config=made.first_config(), keep=1)
    verdict = check(made.subject(case), case)
    assert (verdict.status, verdict.positions) == ("agreed", 2)
    subject = made.subject(case)
    monkeypatch.setattr(subject, "_able", replace(subject._able, forward=_deaf(subject)))
    assert "NotKept" in check(subject, case).error


def _deaf(subject):
    return replace(subject._able.forward, keep=None)
