"""How layers mix tokens, on the uncached path, by facts from outside it."""

import pytest
import torch
import torch.nn.functional as F

from kvfuzz.subjects.run import run_uncached
from kvfuzz.subjects.zoo.config import MIXES, DecoderConfig
from kvfuzz.subjects.zoo.decoder import Decoder
from kvfuzz.subjects.zoo.weights import draw_parameters

ROW = (5, 17, 29, 41, 53, 2, 14, 26)


def decoder_of(**settings):
    return Decoder(DecoderConfig(**{"head_dim": 4, **settings}), seed=1, dtype="float64")


def same_positions(decoder):
    """At which positions the logits do not depend on the first token."""
    changed = (60, *ROW[1:])
    return (run_uncached(decoder, [ROW]) == run_uncached(decoder, [changed])).all(-1)[0].tolist()


@pytest.mark.parametrize("mix", MIXES)
def test_only_a_recurrent_layer_has_weights_of_its_own(mix):
    """The kernel of its convolution; all else is drawn as in a decoder whose layers are alike."""
    uniform = draw_parameters(DecoderConfig(layers=3), 7, torch.float64, "cpu").weights()
    mixed = draw_parameters(DecoderConfig(layers=3, mix=mix), 7, torch.float64, "cpu").weights()
    kernels = [layer.convolution for layer in mixed.layers]
    assert [kernel is not None for kernel in kernels] == [mix == "recurrent", False, False]
    assert torch.equal(mixed.token, uniform.token)
    assert torch.equal(mixed.layers[1].mlp_in, uniform.layers[1].mlp_in)


def test_alternating_layers_see_a_window_and_everything():
    """The first layer has the default window of three, the second none."""
    assert same_positions(decoder_of(mix="alternating", layers=1)) == [False] * 3 + [True] * 5
    assert same_positions(decoder_of(mix="alternating", layers=2)) == [False] * 8
    assert same_positions(decoder_of(window=3, layers=2)) == [False] * 5 + [True] * 3
    assert decoder_of(mix="alternating", layers=3, window=5).windows == (5, None, 5)


def test_the_last_layer_reads_the_keys_and_values_of_the_one_before():
    """Its own matrices for them matter to nobody; in a single layer there is nothing to share."""
    decoder = decoder_of(mix="shared_kv", layers=3)
    flat = decoder.model.flat.requires_grad_(True)
    (gradient,) = torch.autograd.grad(decoder.uncached(torch.tensor([ROW])).square().sum(), flat)
    layers = type(decoder.model)(decoder.config, gradient).weights().layers
    used = [bool(layer.key.any()) and bool(layer.value.any()) for layer in layers]
    assert used == [True, True, False]
    alone = run_uncached(decoder_of(mix="shared_kv", layers=1), [ROW])
    assert torch.equal(alone, run_uncached(decoder_of(layers=1), [ROW]))


@pytest.mark.parametrize("kv_heads", [4, 2])
def test_a_recurrent_layer_is_a_convolution_and_a_gated_recurrence(kv_heads):
    """Token by token, by torch's own convolution."""
    decoder = decoder_of(mix="recurrent", layers=1, heads=4, kv_heads=kv_heads, positions="none")
    w = decoder.model.weights()
    layer = w.layers[0]
    x = w.token[torch.tensor([ROW])]
    h = F.layer_norm(x, x.shape[-1:], layer.attention_norm.gain, layer.attention_norm.bias)
    kernel = layer.convolution.mT[:, None]  # [features, 1, KERNEL]
    value = F.pad((h @ layer.value).mT, (2, 0))
    convolved = F.conv1d(value, kernel, groups=len(kernel)).mT
    keep = torch.sigmoid(h @ layer.key)
    state, states = torch.zeros_like(keep[:, 0]), []
    for t in range(len(ROW)):
        state = keep[:, t] * state + (1 - keep[:, t]) * convolved[:, t]
        states.append(state)
    hidden = torch.stack(states, 1).view(1, 8, kv_heads, 4)
    hidden = hidden.repeat_interleave(4 // kv_heads, 2).flatten(2)
    x = x + (F.silu(h @ layer.query) * hidden) @ layer.out
    h = F.layer_norm(x, x.shape[-1:], layer.mlp_norm.gain, layer.mlp_norm.bias)
    x = x + F.gelu(h @ layer.mlp_in + layer.mlp_in_bias) @ layer.mlp_out + layer.mlp_out_bias
    expected = F.layer_norm(x, x.shape[-1:], w.final_norm.gain, w.final_norm.bias) @ w.token.T
    torch.testing.assert_close(run_uncached(decoder, [ROW]), expected, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("mix", MIXES)
def test_many_sets_of_weights_at_once_give_what_each_gives_alone(mix):
    """For the noise is measured so."""
    decoder = decoder_of(mix=mix, layers=3, heads=4, kv_heads=2, positions="rope")
    tokens = torch.tensor([ROW, ROW[::-1]])
    with torch.no_grad():
        whole = decoder.perturbed(tokens, 1e-3, (None, 0))
        torch.testing.assert_close(whole[0], decoder.uncached(tokens), rtol=1e-12, atol=1e-12)
    assert float((whole[1] - whole[0]).abs().max()) > 1e-4


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
@pytest.mark.parametrize("mix", MIXES)
def test_every_mix_computes_in_every_dtype(mix, dtype):
    """Both paths, near enough."""
    config = DecoderConfig(mix=mix, head_dim=8, positions="alibi", cache="ring", window=3)
    decoder = Decoder(config, dtype=dtype)
    tokens = torch.tensor([ROW])
    with torch.no_grad():
        logits, _ = decoder.cached(tokens, decoder.new_cache(1))
        expected = decoder.uncached(tokens)
    assert logits.dtype == expected.dtype == getattr(torch, dtype)
    assert float((logits - expected).abs().max()) < 0.1 * float(expected.abs().max())
