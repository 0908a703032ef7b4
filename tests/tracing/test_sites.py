"""The sites of the states of a decoder, and which modules are its layers."""

import pytest
import torch
from torch import nn

from kvfuzz.case.case import Case
from kvfuzz.localize.operations.modules import blocks_of, modules_of
from kvfuzz.localize.operations.sites import Sites, owner_of
from kvfuzz.localize.operations.traced_case import trace_case
from kvfuzz.subjects.loading import as_factory
from tests.subjects import decoders
from tests.subjects.decoders import Decoder, RecurrentDecoder, decoder

PLAIN = Case(((1, 2, 3, 4, 5), (9, 8, 7, 6, 5)), (2, 1, 2), dtype="float64")


def sites(subject, step=1):
    """The sites of the operations of a step, by module."""
    found = trace_case(as_factory(subject).subject(PLAIN), PLAIN)
    events = found.recording.of(step)
    recording = found.recording
    named = Sites(events, recording.norms, found.sizes[step], recording.blocks)
    by = {}
    for one in events:
        by.setdefault(one.module, []).append(str(named.of(one, found.comparisons.get(one.index))))
    return by, events


@pytest.mark.parametrize("mixer", [decoders.Grouped, decoders.Fused, decoders.Kernel])
def test_the_sites_of_a_decoder_with_attention(mixer):
    """In order within each layer, whatever the modules are called."""
    by, events = sites(decoder(mixer=mixer))
    for layer in (0, 1):
        assert set(by[f"layers.{layer}.before"]) == {f"{layer}.norm"}
        assert set(by[f"layers.{layer}.after"]) == {f"{layer}.mlp_norm"}
        assert set(by[f"layers.{layer}.mlp.0"]) == {f"{layer}.mlp"}
        whole = ["residual", "residual", "mlp_residual"]  # two sums, and the result
        assert by[f"layers.{layer}"] == [f"{layer}.{kind}" for kind in whole]
        mixing = list(dict.fromkeys(by[f"layers.{layer}.mixer"]))
        assert mixing[0] == f"{layer}.kv"
        assert mixing[-1] == f"{layer}.attention"
        assert set(by[f"layers.{layer}.mixer.out"]) == {f"{layer}.attention"}
    assert set(by["norm"]) == {"final_norm"}
    assert set(by["place"]) == {"position"}
    assert owner_of(events, {}) == "<Net>"
    own = dict.fromkeys(by["<Net>"])
    assert list(own) == ["position", "0.attention", "logits"]


@pytest.mark.parametrize(
    ("net", "layers"),
    [
        (decoders.KeyedNet, ("layers.lower", "layers.upper")),
        (decoders.SideBySideNet, ("lower", "upper")),
    ],
)
def test_layers_without_numbers_have_those_of_their_order(net, layers):
    """The same sites as where they are in a list, though their MLPs number their parts."""
    numbered, _ = sites(Decoder)
    by, events = sites(decoder(net=net))
    for number, layer in enumerate(layers):
        for part in ("", ".before", ".mixer", ".mixer.out", ".mlp.0", ".after"):
            assert by[layer + part] == numbered[f"layers.{number}{part}"]
    whole = f"<{net.__name__}>"
    assert by[whole] == numbered["<Net>"]
    assert owner_of(events, dict(zip(layers, (0, 1), strict=True))) == whole


class Pair(nn.Module):
    """Two stacks of one class, each with numbered blocks, or with none."""

    def __init__(self, blocks):
        super().__init__()
        self.encoder, self.decoder = (nn.Sequential(*map(Stacked, range(blocks))) for _ in "12")


class Stacked(nn.Module):
    def __init__(self, number):
        super().__init__()
        self.part = nn.Linear(2, 2) if number % 2 == 0 else nn.Sequential(nn.Linear(2, 2))


class Kinds(nn.Module):
    """What is alike holds nothing, and what holds something is of two classes."""

    def __init__(self):
        super().__init__()
        self.left, self.right = nn.Linear(2, 2), nn.Linear(2, 2)
        self.first, self.second = Stacked(0), nn.Sequential(nn.Linear(2, 2))


@pytest.mark.parametrize(
    ("model", "blocks"),
    [
        (decoders.SideBySideNet, {"lower": 0, "upper": 1}),
        (decoders.Net, {}),
        (lambda: Pair(2), {}),
        (lambda: Pair(1), {"encoder": 0, "decoder": 1}),
        (Kinds, {}),
    ],
)
def test_layers_without_numbers_are_alike_and_stand_in_for_a_list_alone(model, blocks):
    """Neither two stacks that have lists of layers, nor projections, nor parts of two classes."""
    made = model()
    assert blocks_of(modules_of(made, made)) == blocks


def test_the_sites_of_a_recurrence():
    """What it carries is its cache."""
    by, _ = sites(RecurrentDecoder)
    assert "1.cache" in by["layers.1.mixer"]
    assert set(by["layers.1.after"]) == {"1.mlp_norm"}
    assert not any("attention" in site for site in by["layers.1.mixer"])


def test_code_without_layers_is_one():
    """Functions of tensors."""

    class Sums:
        vocab_size, max_length = 29, None

        def __init__(self, seed=0):
            self.table = torch.randn(29, 8, generator=torch.Generator().manual_seed(seed))

        def new_cache(self, batch):
            return torch.zeros(batch, 1, 8)

        def uncached(self, tokens):
            return self.table[tokens].cumsum(1) @ self.table.T

        def cached(self, tokens, cache):
            sums = cache + self.table[tokens].cumsum(1)
            return nn.functional.linear(sums, self.table), sums[:, -1:]

    by, _ = sites(Sums)
    assert set(by) == {""}
    assert by[""][-1] == "logits"
    assert {"0.kv", "0.cache"} <= set(by[""])
