"""The built-in decoder: two honest paths, by facts from outside either."""

import copy
import math

import pytest
import torch
import torch.nn.functional as F

from kvfuzz.case.case import Case
from kvfuzz.errors import UsageError
from kvfuzz.oracle.agreement import check_against
from kvfuzz.oracle.reference import find_reference
from kvfuzz.subjects.run import run_cached, run_uncached
from kvfuzz.subjects.zoo.cache import expected_bytes
from kvfuzz.subjects.zoo.config import NORMS, POSITIONS, DecoderConfig
from kvfuzz.subjects.zoo.decoder import Decoder
from kvfuzz.subjects.zoo.presets import PRESETS
from kvfuzz.subjects.zoo.weights import draw_parameters

ROWS = ((5, 17, 29, 41, 53, 2, 14, 26), (6, 18, 30, 42, 54, 3, 15, 27))
SCHEDULES = ((8,), (1,) * 8, (3, 1, 4), (2, 5, 1))


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("preset", PRESETS)
def test_every_preset_is_clean_under_every_schedule(preset, schedule):
    """Cached and uncached logits agree, far inside the tolerance."""
    decoder = Decoder(PRESETS[preset], seed=3, dtype="float64")
    case = Case(ROWS, schedule, dtype="float64")
    verdict = check_against(find_reference(decoder, case), decoder, case)
    assert verdict.status == "agreed"
    assert verdict.positions == 16
    assert verdict.excess < 0.5


def test_the_default_is_the_source_texts():
    """2 layers, 2 heads of 2, learned positions, LayerNorm: a cache of (1, 2, T, 2) per tensor."""
    decoder = Decoder()
    config = decoder.config
    assert (config.layers, config.heads, config.head_dim, config.width) == (2, 2, 2, 4)
    assert (config.positions, config.norm, config.window) == ("learned", "layernorm", None)
    cache = decoder.new_cache(1)
    for length in range(1, 5):
        decoder.cached(torch.tensor([[length]]), cache)
        assert {tuple(t.shape) for t in (*cache.keys, *cache.values)} == {(1, 2, length, 2)}
        assert cache.bytes() == expected_bytes(config, 1, length, 4) == 2 * 2 * 2 * length * 2 * 4


def by_hand(decoder, tokens):
    """The logits of a one-layer decoder by torch's own attention and norms, written apart."""
    config, w = decoder.config, decoder.model.weights()
    time = tokens.shape[1]
    norm = {
        "layernorm": lambda n, x: F.layer_norm(x, (config.width,), n.gain, n.bias),
        "rmsnorm": lambda n, x: F.rms_norm(x, (config.width,), n.gain, 1e-5),
    }[config.norm]
    x = w.token[tokens]
    if config.positions == "learned":
        x = x + w.position[:time]
    layer = w.layers[0]
    h = norm(layer.attention_norm, x)
    query, key, value = (
        (h @ m).view(*h.shape[:2], -1, config.head_dim).transpose(1, 2)
        for m in (layer.query, layer.key, layer.value)
    )
    if config.positions == "rope":
        query, key = (
            torch.view_as_real(_turned(t, config)).transpose(-1, -2).flatten(-2)
            for t in (query, key)
        )
    distance = torch.arange(time)[:, None] - torch.arange(time)[None, :]
    mask = torch.zeros(config.heads, time, time, dtype=x.dtype)
    if config.positions == "alibi":
        slopes = torch.tensor([2 ** (-8 * (i + 1) / config.heads) for i in range(config.heads)])
        mask = mask - slopes.to(x.dtype)[:, None, None] * distance
    hidden = distance < 0
    if config.window is not None:
        hidden = hidden | (distance >= config.window)
    mask = mask.masked_fill(hidden, -math.inf)
    attention = F.scaled_dot_product_attention(query, key, value, mask, enable_gqa=True)
    x = x + attention.transpose(1, 2).flatten(2) @ layer.out
    h = norm(layer.mlp_norm, x)
    x = x + F.gelu(h @ layer.mlp_in + layer.mlp_in_bias) @ layer.mlp_out + layer.mlp_out_bias
    return norm(w.final_norm, x) @ w.token.T


def _turned(x, config):
    """Pairs (i, i + d/2) as complex numbers, turned by position / 10000^(2i/d)."""
    half = config.head_dim // 2
    pairs = torch.complex(x[..., :half], x[..., half:])
    turns = torch.arange(x.shape[2])[:, None] * 10_000.0 ** (
        -torch.arange(half, dtype=x.dtype) * 2 / config.head_dim
    )
    return pairs * torch.polar(torch.ones_like(turns), turns)


@pytest.mark.parametrize("window", [None, 3])
@pytest.mark.parametrize("kv_heads", [4, 2])
@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize("positions", POSITIONS)
def test_the_uncached_path_is_a_transformer(positions, norm, kv_heads, window):
    """Its logits are those of torch's own attention, norms and complex rotation."""
    config = DecoderConfig(
        layers=1,
        heads=4,
        kv_heads=kv_heads,
        head_dim=4,
        positions=positions,
        norm=norm,
        window=window,
    )
    decoder = Decoder(config, seed=1, dtype="float64")
    expected = by_hand(decoder, torch.tensor(ROWS))
    torch.testing.assert_close(run_uncached(decoder, ROWS), expected, rtol=1e-11, atol=1e-11)


@pytest.mark.parametrize("preset", PRESETS)
def test_later_tokens_do_not_change_earlier_logits(preset):
    """Both paths are causal."""
    decoder = Decoder(PRESETS[preset], dtype="float64")
    changed = (*ROWS[0][:5], 60, 61, 62)
    for run in (
        lambda row: run_uncached(decoder, [row]),
        lambda row: run_cached(decoder, Case((row,), (3, 5))),
    ):
        one, other = run(ROWS[0]), run(changed)
        assert torch.equal(one[:, :5], other[:, :5])
        assert not torch.equal(one[:, 5:], other[:, 5:])


@pytest.mark.parametrize("window", [1, 3])
def test_a_window_hides_what_is_further_back(window):
    """In one layer a query sees the latest `window` positions, itself included."""
    config = DecoderConfig(layers=1, head_dim=4, window=window, positions="none")
    decoder = Decoder(config, dtype="float64")
    changed = (60, *ROWS[0][1:])
    same = (run_uncached(decoder, [ROWS[0]]) == run_uncached(decoder, [changed])).all(-1)[0]
    assert same.tolist() == [False] * window + [True] * (8 - window)


def test_weights_are_the_seeds_whatever_the_dtype():
    """Rounded from the same float64 values; another seed has others."""
    config = DecoderConfig()
    exact = draw_parameters(config, 7, torch.float64, "cpu").flat
    assert torch.equal(draw_parameters(config, 7, torch.float32, "cpu").flat, exact.float())
    assert torch.equal(draw_parameters(config, 7, torch.bfloat16, "cpu").flat, exact.bfloat16())
    assert not torch.equal(draw_parameters(config, 8, torch.float64, "cpu").flat, exact)


def test_drawing_weights_leaves_the_global_generator_alone():
    """A subject must not change what a user's own code draws."""
    torch.manual_seed(0)
    expected = torch.rand(1)
    torch.manual_seed(0)
    Decoder(seed=5)
    assert torch.equal(torch.rand(1), expected)


def test_every_weight_matters():
    """No view is forgotten or used twice: changing any piece of the flat parameter changes
    logits."""
    config = DecoderConfig(max_length=8, vocab_size=64)
    decoder = Decoder(config, dtype="float64")
    tokens = [list(range(64))[i : i + 8] for i in range(0, 64, 8)]
    flat = decoder.model.flat.requires_grad_(True)
    logits = decoder.uncached(torch.tensor(tokens))
    (gradient,) = torch.autograd.grad((logits * torch.randn_like(logits)).sum(), flat)
    # A bias before softmax would have none; this decoder has none of those.
    assert int((gradient == 0).sum()) == 0


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"layers": 0}, "zoo setting layers should be at least 1, got 0"),
        ({"layers": True}, "layers should be at least 1, got True"),
        ({"heads": 3}, "kv_heads should be a divisor of 3, got 2"),
        ({"positions": "sine"}, "positions should be learned or rope or alibi or none"),
        ({"norm": "batch"}, "norm should be layernorm or rmsnorm, got 'batch'"),
        ({"cache": "disk"}, "cache should be concatenated or static or ring or paged or int8 or"),
        ({"mix": "some"}, "mix should be uniform or alternating or recurrent or shared_kv or"),
        ({"window": 0}, "window should be at least 1, got 0"),
        ({"positions": "rope", "head_dim": 3}, "head_dim should be even with rope, got 3"),
        ({"heads": 1, "kv_heads": 1, "head_dim": 1}, "head_dim should be 2 or more with a single"),
        ({"scale": 0}, "scale should be positive, got 0"),
        ({"scale": "big"}, "scale should be positive, got 'big'"),
        ({"depth": 2}, "zoo has no setting 'depth': choose from layers, heads"),
    ],
)
def test_a_setting_out_of_range_is_refused(settings, message):
    """By its name and value."""
    with pytest.raises(UsageError, match=message):
        DecoderConfig().with_settings(**settings)


def test_the_named_weights_are_those_that_there_are_now():
    """Also after something is written into them, or they move to another dtype; gradients flow."""
    parameters = draw_parameters(DecoderConfig(), 0, torch.float64, "cpu")
    before = parameters.weights()
    assert parameters.weights() is before
    parameters.flat[0] = 7.0
    assert parameters.weights().token[0, 0] == 7.0
    assert copy.deepcopy(parameters).weights().token.data_ptr() != before.token.data_ptr()
    parameters.to(torch.float32)
    assert parameters.weights().token.dtype == torch.float32
    parameters.flat.data = torch.zeros_like(parameters.flat)
    assert not parameters.weights().token.any()
    parameters.requires_grad_(True)
    parameters.weights().token.sum().backward()
    assert parameters.flat.grad.count_nonzero() == before.token.numel()
