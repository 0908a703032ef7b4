"""What can be done to a cache of transformers, for each kind of cache: random programs against the
uncached path, and what is refused."""

from __future__ import annotations

import inspect
import math
from functools import cache
from typing import Any

import pytest
import torch

from kvfuzz.errors import UsageError
from kvfuzz.subjects.loading import Options
from kvfuzz.subjects.transformers.factory import factory
from kvfuzz.subjects.transformers.tiny import WINDOW
from tests.adapters.cache_programs import run

caches = pytest.importorskip("transformers.cache_utils")
# Before a dynamic layer had a reset of its own, an emptied one kept its length, and much else was
# wrong. Those releases have tests/adapters/test_transformers_releases.py.
if "reset" not in vars(getattr(caches, "DynamicLayer", object)):
    pytest.skip("the caches of this release have known faults", allow_module_level=True)

ALLOWED = 1e-9  # relative, in float64
MODEL_TYPES = ("llama", "gpt2", "gemma2", "lfm2", "t5")
PADDED = (None, "left", "right")
PROGRAMS = 4


@cache
def made(model_type: str, **config: Any) -> Any:
    """The factory of float64 subjects of `model_type`; skips where the release has none."""
    try:
        return factory(model_type, Options(dtype="float64", config=config))
    except UsageError as error:
        pytest.skip(str(error))


def kinds_of(model_type: str) -> tuple[str, ...]:
    """The kinds of cache to run programs on. What a quantised one may do to a logit is no bound."""
    return tuple(kind for kind in made(model_type).choices["cache"] if kind != "quantised")


def subject_of(model_type: str, seed: int, **config: Any) -> Any:
    """A float64 subject with the settings that come first, and those in `config`."""
    found = made(model_type)
    return found.build(seed, "float64", {**found.first_config(), **config})


def tokens_of(rows: int, columns: int, seed: int = 0) -> torch.Tensor:
    """Random tokens [rows, columns]."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(0, 64, (rows, columns), generator=generator)


def taken(subject: Any) -> set[str]:
    """The optional arguments of `cached`."""
    return set(inspect.signature(subject.cached).parameters) - {"tokens", "cache"}


def gap(actual: torch.Tensor, expected: torch.Tensor) -> float:
    """The largest difference, relative to the largest logit."""
    return float((actual - expected).abs().max() / expected.abs().max())


@pytest.mark.parametrize("padded", PADDED)
@pytest.mark.parametrize("model_type", MODEL_TYPES)
def test_random_programs_agree(model_type, padded):
    """Whatever is done to a cache, of any kind, each row says what its own tokens say uncached."""
    done, refused = set(), set()
    for number, kind in enumerate(kinds_of(model_type)):
        for seed in range(number, number + PROGRAMS):
            subject = subject_of(model_type, seed, cache=kind)
            if padded and "mask" not in taken(subject):
                pytest.skip(f"{model_type} cannot be padded")
            given = tuple(taken(subject)) if padded else ((), ("mask",))[seed % 2]
            outcome = run(subject, seed, given=given, padded=padded)
            if padded == "right" and model_type == "lfm2":
                continue  # its convolution reaches over padding: the library's own limit
            assert outcome.worst < ALLOWED, (kind, seed, outcome.where)
            done |= set(outcome.done)
            refused |= {reason.partition(":")[0] for reason in outcome.refused}
    if model_type == "llama" and padded is None:
        assert done == {"feed", "crop", "reorder", "copy", "save", "reset"}


@pytest.mark.parametrize("attn", ["eager", "sdpa"])
def test_positions_alone_may_be_given(attn):
    """Positions without a mask are what the model would have counted itself."""
    for seed in range(PROGRAMS):
        outcome = run(subject_of("llama", seed, attn=attn), seed, given=("positions",))
        assert outcome.worst < ALLOWED, (seed, outcome.where)


@pytest.mark.parametrize("kind", ["dynamic", "own", "recording", "static"])
def test_a_recurrent_model_goes_through_programs(kind):
    """States are reordered, copied, saved and emptied like keys."""
    if kind not in kinds_of("mamba2"):
        pytest.skip(f"this release has no {kind} cache for mamba2")
    for seed in range(PROGRAMS):
        for given, padded in (((), None), (("mask",), "left")):
            outcome = run(subject_of("mamba2", seed, cache=kind), seed, given=given, padded=padded)
            assert outcome.worst < ALLOWED, (seed, outcome.where)


def test_a_hybrid_agrees_when_it_is_given_positions():
    """bamba starts again at position 0 in every call unless positions are given."""
    given = [run(subject_of("bamba", s), s, given=("positions",)).worst for s in range(PROGRAMS)]
    without = [run(subject_of("bamba", s), s).worst for s in range(PROGRAMS)]
    assert max(given) < ALLOWED < max(without)


def test_a_decoder_with_an_encoder_follows_its_rows():
    """What a row attends to in the encoder is chosen by its first token, and goes where it goes."""
    for kind in kinds_of("bart"):
        for seed in range(PROGRAMS):
            outcome = run(subject_of("bart", seed, cache=kind), seed)
            assert outcome.worst < ALLOWED, (kind, seed, outcome.where)
    subject = subject_of("bart", 0)
    assert "mask" not in taken(subject), "its positions are slots"
    _, cache = subject.cached(tokens_of(2, 4), subject.new_cache(2))
    with pytest.raises(NotImplementedError, match="chose its encoder output"):
        subject.crop(cache, 4)
    one, other = subject.uncached(torch.tensor([[3, 5], [4, 5]]))
    assert gap(one[1:], other[1:]) > 1e-3


def test_the_decoder_of_bart_can_be_had_alone():
    """Where the library has a class for the decoder alone, a setting asks for it."""
    alone = made("bart", is_encoder_decoder=False).build(0, "float64", {})
    assert type(alone.model).__name__ == "BartForCausalLM"
    assert run(alone, 3).worst < ALLOWED


def test_a_crop_of_more_than_there_is_leaves_nothing():
    """The count is passed on as it is, and an emptied cache begins anew."""
    subject = subject_of("llama", 2)
    tokens = tokens_of(2, 9)
    _, cache = subject.cached(tokens[:, :5], subject.new_cache(2))
    cache = subject.crop(cache, 8)
    logits, _ = subject.cached(tokens[:, 5:], cache)
    assert gap(logits, subject.uncached(tokens[:, 5:])) < ALLOWED


def test_a_window_that_has_moved_on_cannot_be_cropped():
    """What a window has evicted is refused, and nothing has changed; recorded, it comes back."""
    tokens = tokens_of(1, WINDOW + 6)
    subject = subject_of("gemma2", 0)
    _, cache = subject.cached(tokens[:, : WINDOW + 2], subject.new_cache(1))
    with pytest.raises(NotImplementedError, match="has forgotten what came before"):
        subject.crop(cache, 1)
    logits, _ = subject.cached(tokens[:, WINDOW + 2 :], cache)
    assert gap(logits, subject.uncached(tokens)[:, WINDOW + 2 :]) < ALLOWED
    if "recording" not in kinds_of("gemma2"):
        return
    subject = subject_of("gemma2", 0, cache="recording")
    _, cache = subject.cached(tokens_of(1, WINDOW + 2, seed=5), subject.new_cache(1))
    kept = subject.crop(cache, WINDOW + 2)
    logits, _ = subject.cached(tokens, kept)
    assert gap(logits, subject.uncached(tokens)) < ALLOWED


def test_a_static_cache_refuses_what_it_cannot_hold():
    """More slots than there are, and another number of rows, are refused, and nothing changes."""
    subject = subject_of("llama", 0, cache="static")
    tokens = tokens_of(2, 10)
    _, cache = subject.cached(tokens[:, :4], subject.new_cache(2))
    with pytest.raises(NotImplementedError, match="64 slots is full"):
        subject.cached(tokens_of(2, 61), cache)
    with pytest.raises(NotImplementedError, match="cannot change its rows"):
        subject.reorder(cache, torch.tensor([0, 0, 1]))
    logits, _ = subject.cached(tokens[:, 4:], cache)
    assert gap(logits, subject.uncached(tokens)[:, 4:]) < ALLOWED


def test_unused_slots_are_those_past_the_end():
    """The slots that a static cache has left are offered, with those that were cropped away."""
    subject = subject_of("llama", 0, cache="static")
    _, cache = subject.cached(tokens_of(2, 5), subject.new_cache(2))
    assert {tensor.shape[2] for tensor in subject.unused(cache)} == {64 - 5}
    assert {tensor.shape[2] for tensor in subject.unused(subject.crop(cache, 2))} == {64 - 3}
    assert subject.unused(subject_of("llama", 0).new_cache(2)) == []


@pytest.mark.parametrize("kind", ["dynamic", "static"])
def test_the_view_is_what_was_fed(kind):
    """Keys and values are seen in order, as many as a window keeps or as were fed."""
    tokens = tokens_of(2, WINDOW + 4)
    subject = subject_of("gemma2", 0, cache=kind)
    cache = subject.new_cache(2)
    assert subject.view(cache) == []
    for column in range(tokens.shape[1]):
        _, cache = subject.cached(tokens[:, column : column + 1], cache)
        (windowed, _), (full, _) = subject.view(cache)
        assert full.shape[2] == column + 1
        assert windowed.shape[2] >= min(WINDOW - 1, column + 1)
    assert subject.windows == [WINDOW - 1, None]
    _, at_once = subject.cached(tokens, subject.new_cache(2))
    for pair, whole in zip(subject.view(cache), subject.view(at_once), strict=True):
        for one, other in zip(pair, whole, strict=True):
            least = min(one.shape[2], other.shape[2])
            assert gap(one[:, :, -least:], other[:, :, -least:]) < ALLOWED


def test_a_layer_without_keys_is_not_seen():
    """A state is no entry of the view."""
    subject = subject_of("bamba", 0)
    _, cache = subject.cached(tokens_of(1, 4), subject.new_cache(1))
    state, attention = subject.view(cache)
    assert state is None
    assert attention[0].shape[2] == 4


def test_padding_between_tokens_is_refused_where_it_counts():
    """Relative positions count slots, and so do windows: padding inside them is refused."""
    mask = torch.tensor([[True, False, True]])
    subject = subject_of("t5", 0)
    with pytest.raises(NotImplementedError, match="counts the padding between two tokens"):
        subject.cached(tokens_of(1, 3), subject.new_cache(1), mask=mask)
    wide = torch.ones(1, WINDOW + 1, dtype=torch.bool)
    wide[0, 2] = False
    subject = subject_of("gemma2", 0)
    with pytest.raises(NotImplementedError, match="a window of this model counts"):
        subject.cached(tokens_of(1, WINDOW + 1), subject.new_cache(1), mask=wide)
    subject.cached(tokens_of(1, WINDOW + 1), subject.new_cache(1), mask=~wide | wide)


@pytest.mark.parametrize(
    ("model_type", "arguments", "by_mask"),
    [
        ("llama", {"mask", "positions"}, False),
        ("opt", {"mask", "positions"}, True),
        ("bloom", {"mask"}, True),
        ("mpt", {"mask"}, True),
        ("mamba2", {"mask"}, True),
        ("bart", set(), False),
        ("rwkv", set(), False),
    ],
)
def test_what_a_model_takes_is_read_off_it(model_type, arguments, by_mask):
    """Masks and positions are taken where the model does something with them."""
    subject = subject_of(model_type, 0)
    assert taken(subject) - {"logits_to_keep"} == arguments  # which depends on the release
    assert subject.positions_from_mask is by_mask


def test_positions_begin_where_the_model_begins():
    """To a model whose padding has a place in the table of positions, the first token comes after
    that place."""
    found = made("roberta", pad_token_id=1)
    for seed in range(PROGRAMS):
        subject = found.build(seed, "float64", {})
        assert subject.max_length == 62
        outcome = run(subject, seed, given=("mask", "positions"), padded="left", lowest=2)
        assert outcome.worst < ALLOWED, (seed, outcome.where)


@pytest.mark.parametrize("beams", [1, 3])
@pytest.mark.parametrize("model_type", ["llama", "gemma2", "t5", "mamba"])
def test_generation_is_the_same_without_a_cache(model_type, beams):
    """Greedy and beam search choose the same tokens with a cache as without, by the same logits."""
    for kind in kinds_of(model_type):
        subject = subject_of(model_type, 4, cache=kind)
        tokens, logits = subject.generate(tokens_of(2, 5), 9, beams, cached=True)
        expected, by = subject.generate(tokens_of(2, 5), 9, beams, cached=False)
        assert tokens.shape == (2, 9)
        assert torch.equal(tokens, expected), kind
        if logits is not None:
            assert logits.shape == (2, 9, 64)
            assert gap(logits, by) < ALLOWED


def test_a_quantised_cache_says_so():
    """A cache that rounds on purpose declares its dtype, and that nothing bounds what it does."""
    if "quantised" not in made("llama").choices["cache"]:
        pytest.skip("nothing quantises here")
    subject = subject_of("llama", 0, cache="quantised")
    assert subject.cache_dtype in (torch.float8_e4m3fn, torch.float8_e5m2)
    tokens = tokens_of(2, 8)
    _, cache = subject.cached(tokens[:, :5], subject.new_cache(2))
    logits, cache = subject.cached(tokens[:, 5:], cache)
    assert gap(logits, subject.uncached(tokens)[:, 5:]) > ALLOWED
    assert subject.cache_bound == math.inf
    assert subject.view(cache) == [None, None]
    assert not hasattr(subject_of("llama", 0), "cache_dtype")


@pytest.mark.parametrize(
    ("model_type", "kinds"),
    [
        ("jamba", ["linear_attention", "full_attention"]),
        ("qwen3_next", ["linear_attention", "full_attention"]),
        ("lfm2", ["conv", "full_attention"]),
        ("gemma3n_text", ["sliding_attention", "full_attention"] * 2),
        ("recurrent_gemma", ["linear_attention", "sliding_attention"]),
    ],
)
def test_a_tiny_model_keeps_each_kind_of_layer(model_type, kinds):
    """However rare a kind of layer is in the large model, the tiny one has it."""
    config = subject_of(model_type, 0).model.config
    assert list(config.layer_types) == kinds


def test_a_kind_that_is_asked_for_is_the_only_one():
    """A kind of cache that the user fixes is not drawn, and is the one that runs."""
    found = made("llama", cache="static")
    assert "cache" not in found.choices
    assert type(found.build(0, "float64", {}).new_cache(1).own).__name__ == "StaticCache"
