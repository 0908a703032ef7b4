"""A constant that was derived in float32 when the model was built is no fault of its cache."""

import pytest
import torch

from kvfuzz.report.text import hunt_text
from kvfuzz.search.hunt import fuzz
from kvfuzz.search.replay import replay
from kvfuzz.subjects.builder import BUILT_ANEW
from kvfuzz.subjects.float64 import Float64Subject
from kvfuzz.subjects.loading import Options, as_factory
from tests.subjects import derived, models, numerics

FLOAT64 = Options(dtype="float64")
NAME = "tests.subjects.derived:"


@pytest.mark.parametrize("make", [derived.Leaky, derived.Plain, derived.LeakyInHalf])
def test_a_constant_derived_when_the_model_was_built_is_no_divergence(make):
    """The float64 lane builds such a model in float64, and judges it as exactly as any other."""
    hunt = fuzz(make, examples=60, seed=1)
    assert hunt.verdict == "agreed"
    assert hunt.worst_excess < 0.5
    note = "note: in float64 it is built anew in float64, since it derives a constant"
    assert note in hunt_text(hunt)
    assert hunt.to_json()["remarks"] == list(hunt.remarks)


@pytest.mark.parametrize(
    "make",
    [
        derived.StoresFloat32,
        derived.OtherEpsilon,
        derived.TooLarge,
        derived.TableInFloat32,
        derived.OtherWeights,
        derived.OnlyOnce,
    ],
)
def test_a_fault_of_that_size_still_diverges(make):
    """So does a model that cannot be compared with itself built in float64."""
    hunt = fuzz(make, examples=40, seed=1, options=FLOAT64, locate=False)
    assert (hunt.verdict, hunt.failure.case.dtype) == ("diverged", "float64")
    assert hunt.failure.verdict.first.difference < 1e-5


def test_a_model_without_such_a_constant_is_run_in_its_twin():
    """It is not built again, and nothing is said."""
    factory = as_factory(numerics.Preallocated)
    factory.build(3, "float64", {})
    assert not factory.remarks
    weights = [p.dtype for p in factory.build(3, "float64", {}).subject.net.parameters()]
    assert set(weights) == {torch.float32}
    assert not as_factory(models.ForgetsOnDecode).remarks


def test_its_weights_are_those_of_its_own_dtype():
    """To the last digit that float32 has; so a case means the same in both lanes."""
    made = as_factory(derived.Leaky).build(5, "float64", {})
    own = derived.Leaky(5)
    assert isinstance(made, Float64Subject)
    for name, weight in made.subject.named_parameters():
        assert weight.dtype == torch.float64
        torch.testing.assert_close(weight.float(), own.get_parameter(name), rtol=2e-7, atol=1e-7)


def test_the_default_dtype_is_what_it_was():
    """Also where the model raises while it is built anew."""
    for make in (derived.Leaky, derived.OnlyOnce):
        as_factory(make).build(0, "float64", {})
        assert torch.get_default_dtype() == torch.float32


def test_a_fault_in_such_a_model_replays_and_is_located(tmp_path):
    """At the fault, and not at the constant."""
    options = Options(dtype="float64")
    hunt = fuzz(f"{NAME}TooLarge", examples=40, seed=1, options=options, folder=tmp_path)
    again = replay(hunt.path)
    assert again.verdict.excess == hunt.failure.verdict.excess
    assert "(1 + 1e-7)" in str(again.explanation.location.summary())


def test_a_difference_that_goes_away_by_itself_is_none_of_a_constant():
    """The paths are compared a second time before the new subject is trusted."""
    derived.OtherEachTime.runs = 0

    class Moody(derived.OtherEachTime):
        def step(self, state, x, leak):
            return super().step(state, x, torch.sigmoid(self.rate))

    assert BUILT_ANEW not in as_factory(Moody).remarks


def test_a_large_difference_is_none_of_a_constant():
    """Built in float64, it agrees; but what float32 rounds is never that much."""

    class Large(derived.Leaky):
        def derived(self):
            right = super().derived()
            return right if right.dtype == torch.float64 else right * 1.01

    hunt = fuzz(Large, examples=20, seed=1, options=FLOAT64, locate=False)
    assert (hunt.verdict, hunt.remarks) == ("diverged", ())
