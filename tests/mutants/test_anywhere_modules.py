"""Modules and attention of a model are found by what they do, and changed where they are."""

import math

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from kvfuzz.subjects.loading import load
from mutants.generic.attention_hooks import SoftmaxMode, seen
from mutants.generic.cache_contents import write
from mutants.generic.module_roles import ModuleRoles, module_roles
from tests.subjects import decoders
from tests.subjects.models import Summing
from tests.subjects.offering import Offering, Root


def test_the_modules_of_a_model_are_told_by_what_they_do():
    """No name in this one says what it is."""
    found = module_roles(Offering())
    assert [norm.path for norm in found.norms] == [
        *("stack.0.first", "stack.0.second", "stack.1.first", "stack.1.second", "end"),
    ]
    assert not any(norm.centred for norm in found.norms)
    mixers = ("stack.0.mix", "stack.1.mix")
    assert found.mixers == mixers
    assert found.blocks == ("stack.0", "stack.1")
    assert found.twins == tuple((f"{mixer}.b", f"{mixer}.c") for mixer in mixers)
    letters = [f"{mixer}.{letter}" for mixer in mixers for letter in "abcd"]
    assert {*letters, "stack.0.feed", "stack.1.feed", "out"} == set(found.projections)


def whole(model, tokens):
    """An uncached run of the model of `Offering`."""
    return model(tokens, torch.arange(tokens.shape[1]).expand_as(tokens))


class Held:
    """The model of `Offering` under another name."""

    vocab_size, max_length = Offering.vocab_size, Offering.max_length

    def __init__(self):
        self.inside = {"net": Offering().model}

    def uncached(self, tokens):
        """What the model says."""
        return whole(self.inside["net"], tokens)


class Is(nn.Module):
    """A subject that is a module itself."""

    vocab_size, max_length = Offering.vocab_size, Offering.max_length

    def __init__(self):
        super().__init__()
        self.inside = Offering().model

    def uncached(self, tokens):
        """What the model inside says."""
        return whole(self.inside, tokens)


def test_the_model_of_a_subject_needs_no_name():
    """It is held somewhere, or is the subject."""
    own = module_roles(Offering())
    assert module_roles(Held()) == own
    assert [norm.path for norm in module_roles(Is()).norms] == [
        f"inside.{n.path}" for n in own.norms
    ]
    two = Held()
    two.other = nn.Linear(2, 2)
    assert module_roles(two) == ModuleRoles()  # nobody can tell which


def test_a_recurrent_model_has_what_mixes_too():
    """A gated sum over time mixes positions as attention does."""
    found = module_roles(decoders.RecurrentDecoder())
    assert found.mixers == ("layers.0.mixer", "layers.1.mixer")


class LayerNorm(nn.Linear):
    """A projection by another name."""


class Named(nn.Module):
    """What the names of its parts say is not so."""

    def __init__(self):
        super().__init__()
        self.norm, self.linear, self.attention = LayerNorm(16, 16), Root(True), nn.Tanh()
        self.projection, self.real = nn.Softmax(-1), nn.LayerNorm(16)
        self.table, self.out = nn.Embedding(11, 16), nn.Linear(16, 11)

    def forward(self, tokens):
        x = self.attention(self.linear(self.norm(self.table(tokens))))
        return self.out(self.real(self.projection(x)))


class Misnamed:
    """A subject of which only the uncached path is asked."""

    vocab_size, max_length = 11, None

    def __init__(self):
        torch.manual_seed(0)
        self.model = Named()

    def uncached(self, tokens):
        return self.model(tokens)


def test_names_count_for_nothing():
    """A linear LayerNorm is a projection; tanh and softmax are neither that nor a norm."""
    found = module_roles(Misnamed())
    assert [(norm.path, norm.centred) for norm in found.norms] == [
        ("linear", False),
        ("real", True),
    ]
    assert found.projections == ("norm", "out")
    assert found.mixers == found.blocks == ()


def test_a_model_may_hold_its_weights_as_buffers():
    """There is no parameter then to ask where it is."""
    buffered = Misnamed()
    for module in buffered.model.modules():
        for name in list(module._parameters):
            weight = module._parameters.pop(name)
            module.register_buffer(name, weight)
    assert not list(buffered.model.parameters())
    assert module_roles(buffered) == module_roles(Misnamed()) != ModuleRoles()


def test_a_subject_without_a_model_has_no_modules():
    """And no fault in them either."""
    assert module_roles(Summing()) == ModuleRoles()


QUERY = torch.randn(2, 4, 3, 8, generator=torch.Generator().manual_seed(1))
KEY, VALUE = torch.randn(2, 2, 4, 5, 8, generator=torch.Generator().manual_seed(2))
ALL = torch.ones(3, 5, dtype=torch.bool)


@pytest.mark.parametrize(
    "given",
    [
        {},
        {"is_causal": True},
        {"scale": 0.3},
        {"attn_mask": ALL.tril(2)},
        {"attn_mask": ALL.tril(-1)},
        {"attn_mask": torch.zeros(3, 5).masked_fill(~ALL.tril(2), -math.inf)},
    ],
    ids=["plain", "causal", "scale", "bool", "nothing to see", "additive"],
)
def test_attention_taken_apart_is_torchs_own(given):
    """The fused kernel and what takes its place give the same; and a change of scores shows."""
    expected = F.scaled_dot_product_attention(QUERY, KEY, VALUE, **given)
    with SoftmaxMode(lambda scores: scores, False, 3, 5):
        found = F.scaled_dot_product_attention(QUERY, KEY, VALUE, **given)
    torch.testing.assert_close(found, expected)
    with SoftmaxMode(lambda scores: scores * 2, False, 3, 5):
        assert not torch.allclose(
            F.scaled_dot_product_attention(QUERY, KEY, VALUE, **given), expected
        )


def test_grouped_heads_are_repeated_one_by_one():
    """As torch documents enable_gqa."""
    given = {"enable_gqa": True}
    expected = F.scaled_dot_product_attention(QUERY, KEY[:, :2], VALUE[:, :2], **given)
    with SoftmaxMode(lambda scores: scores, False, 3, 5):
        found = F.scaled_dot_product_attention(QUERY, KEY[:, :2], VALUE[:, :2], **given)
    torch.testing.assert_close(found, expected)


@pytest.mark.parametrize(
    ("shape", "axis", "watched"),
    [
        ((2, 4, 3, 64), -1, True),  # heads, and room for more keys than there are
        ((8, 3, 5), -1, True),  # heads and rows on one axis
        ((2, 3, 8), -1, False),  # a router: experts, not slots
        ((6, 8), -1, False),
        ((2, 4, 3, 5), 1, False),
    ],
)
@pytest.mark.parametrize(
    "softmax",
    [
        *(torch.softmax, F.softmax, torch.Tensor.softmax),
        lambda scores, axis: torch.softmax(input=scores, dim=axis),
    ],
)
def test_a_softmax_over_slots_is_attention(shape, axis, watched, softmax):
    """Three new tokens on two that are cached: five slots."""
    met = []
    with SoftmaxMode(lambda scores: met.append(1) or scores, False, 3, 5):
        softmax(torch.randn(shape), axis)
    assert bool(met) == watched


def test_a_masked_key_is_not_seen():
    """By infinity, by the lowest number of the dtype, or by the usual -1e9."""
    lowest = torch.finfo(torch.float32).min
    scores = torch.tensor([-math.inf, lowest, lowest + 3, -1e9, -50.0, 0.0, 50.0])
    assert seen(scores).tolist() == [False] * 4 + [True] * 3


def test_what_is_written_counts_only_if_the_cache_shows_it():
    """A view that is a copy takes nothing in."""
    subject = load("tests.subjects.offering:Offering").build(0, "", {})
    _, cache = subject.cached(torch.tensor([[1, 2]]), subject.new_cache(1))

    class Copying(Offering):
        def view(self, cache):
            return [(key.clone(), value.clone()) for key, value in cache.pairs]

    def change(held):
        for key, _ in held.layers:
            key.zero_()

    assert not write(Copying(), cache, 1, 2, change)
    assert bool(cache.pairs[0][0].any())
    assert write(subject, cache, 1, 2, change)
    assert not bool(cache.pairs[0][0].any())
