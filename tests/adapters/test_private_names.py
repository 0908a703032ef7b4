"""The private names of other libraries that kvfuzz reads still exist.

`kvfuzz/subjects/transformers/private.py` and `kvfuzz/subjects/mlx.py` answer as if the library had
no such thing when a name is gone. So a rename would quietly change what is drawn and what is seen.
A test that fails here says which function to mend.
"""

from __future__ import annotations

import pytest
import torch

from kvfuzz.subjects.transformers import private


@pytest.fixture(scope="module")
def transformers():
    library = pytest.importorskip("transformers")
    if tuple(map(int, library.__version__.split(".")[:2])) < (5, 0):
        pytest.skip("older releases have other private names")
    return library


def test_a_model_says_whether_it_supports_sdpa(transformers):
    """`_supports_sdpa`: without it every model would be drawn with eager attention alone."""
    assert private.supports_sdpa(transformers.LlamaForCausalLM)
    assert not private.supports_sdpa(transformers.BloomForCausalLM)


def test_a_configuration_chooses_attention_and_experts(transformers):
    """`_attn_implementation` and `_experts_implementation`: without them neither could be set."""
    config = transformers.MixtralConfig()
    assert private.can_choose_attention(config)
    assert private.can_choose_experts(config)


def test_experts_run_one_by_one_and_then_as_before(transformers):
    """`_experts_implementation` is what the model reads when it runs."""
    config = transformers.MixtralConfig(experts_implementation="grouped_mm")
    with private.eager_experts(config):
        assert config._experts_implementation == "eager"
    assert config._experts_implementation == "grouped_mm"


def test_a_model_reorders_tuples_itself(transformers):
    """`_reorder_cache`: the only way to reorder a cache of tuples."""
    assert private.reorder_of(transformers.XLNetLMHeadModel) is not None
    assert private.reorder_of(transformers.LlamaForCausalLM) is None


def test_a_quantised_layer_is_recognised(transformers):
    """`_quantized_keys`: without it a quantised cache would be shown as if it held everything."""
    module = pytest.importorskip("transformers.cache_utils")
    config = transformers.LlamaConfig(
        num_hidden_layers=1, hidden_size=8, num_attention_heads=2, num_key_value_heads=2
    )
    try:
        cache = module.QuantizedCache(backend="fp8", config=config)
    except (ImportError, ValueError) as error:
        pytest.skip(f"nothing quantises here: {error}")
    plain = module.DynamicCache(config=config)
    for one in (cache, plain):
        one.update(torch.ones(1, 2, 3, 4), torch.ones(1, 2, 3, 4), 0)
    assert private.is_quantised(cache, cache.layers)
    assert not private.is_quantised(plain, plain.layers)


def test_a_rotating_cache_of_mlx_shows_its_order():
    """`_temporal_order`: without it a view would be in the order of storage."""
    caches = pytest.importorskip("mlx_lm.models.cache")
    assert callable(caches.RotatingKVCache(4)._temporal_order)
