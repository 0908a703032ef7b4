"""The float64 lane of a subject of one's own: promoted for the duration, nothing left behind."""

from contextlib import suppress

import pytest
import torch

from kvfuzz.case.case import Case
from kvfuzz.oracle.agreement import check
from kvfuzz.search.hunt import fuzz
from kvfuzz.subjects.float64 import Float64Subject, Twin
from kvfuzz.subjects.loading import Options, as_factory
from kvfuzz.subjects.protocol import Factory
from kvfuzz.subjects.run import run_cached, run_uncached
from tests.subjects import models, numerics, out_of_reach

CASE = Case(((1, 5, 9, 2, 8, 3),), (2, 1, 1, 2), dtype="float64")
NUMERICS = "tests.subjects.numerics"


def test_a_float32_subject_is_offered_in_both_lanes():
    """Whoever brings a module gets the float64 lane without a line of his own."""
    assert as_factory(numerics.Preallocated).dtypes == ("float32", "float64")
    assert as_factory(numerics.InHalf).dtypes == ("bfloat16", "float64")
    assert as_factory(numerics.Preallocated()).dtypes == ("float32", "float64")


def test_a_subject_that_does_not_run_in_float64_is_offered_in_its_own():
    """Its weights are out of reach, so its logits stay float32."""
    assert as_factory(lambda seed: out_of_reach.opaque(seed)).dtypes == ("float32",)


def test_islands_and_buffers_are_float64_inside():
    """A softmax in float32 would round to 1e-7, and so would a cache made by torch.zeros."""
    subject = as_factory(numerics.Preallocated).build(0, "float64", {})
    cached = run_cached(subject, CASE)
    uncached = run_uncached(subject, CASE.tokens)
    assert cached.dtype == uncached.dtype == torch.float64
    assert float((cached - uncached).abs().max()) < 1e-14
    native = run_uncached(numerics.Preallocated(0), CASE.tokens)
    assert 1e-10 < float((native - uncached).abs().max()) < 1e-5


def test_a_clean_preallocated_cache_is_not_accused():
    """In either lane."""
    hunt = fuzz(numerics.Preallocated, examples=60, seed=0)
    assert (hunt.verdict, hunt.bases) == ("agreed", ("measured",))
    assert hunt.worst_excess < 0.5


def test_a_cache_that_rounds_to_bfloat16_is_caught_inside():
    """Only float32 is promoted, or this would hide."""
    subject = as_factory(numerics.RoundsTo).build(0, "float64", {})
    assert check(subject, CASE).excess > 1e6


@pytest.mark.parametrize("make", [numerics.InHalf, numerics.InHalfByName])
def test_what_a_bfloat16_model_makes_bfloat16_is_no_loss(make):
    """In its own dtype nothing is rounded there, so nothing is in the float64 lane; a float16 cache
    is a fault in both."""
    hunt = fuzz(make, examples=40, seed=0, options=Options(dtype="float64"))
    assert (hunt.verdict, hunt.worst_excess < 0.5) == ("agreed", True)

    class InHalfAndHalf(numerics.InHalf):
        def stored(self, state):
            return state.to(torch.float16).to(state.dtype)

    assert check(as_factory(InHalfAndHalf).build(0, "float64", {}), CASE).diverged


@pytest.mark.parametrize("method", ["uncached", "cached"])
def test_nothing_stays_changed_when_the_subject_raises(method):
    """Weights are float32 again, the same tensors with the same bits, and so is the default."""

    class Raises(numerics.Preallocated):
        def uncached(self, tokens):
            if method == "uncached":
                raise ZeroDivisionError
            return super().uncached(tokens)

        def cached(self, tokens, cache):
            raise ZeroDivisionError

    inner = Raises()
    before = {n: (p.clone(), p.data_ptr()) for n, p in inner.net.named_parameters()}
    subject = Float64Subject(inner)
    with suppress(ZeroDivisionError):
        run_uncached(subject, CASE.tokens)
        assert method == "cached"
        subject.cached(torch.tensor(CASE.tokens), subject.new_cache(1))
        raise AssertionError
    for name, parameter in inner.net.named_parameters():
        value, pointer = before[name]
        assert parameter.dtype == torch.float32
        assert (torch.equal(parameter, value), parameter.data_ptr()) == (True, pointer)
    assert torch.get_default_dtype() == torch.float32
    assert torch.ones(1).float().dtype == torch.float32


def test_the_lane_works_in_every_worker():
    """Two processes find what one finds, in float64 too."""
    options = Options(dtype="float64")
    one, two = (
        fuzz(f"{NUMERICS}:RoundsTo", examples=100, seed=2, workers=n, options=options)
        for n in (1, 2)
    )
    assert one.failure.case.dtype == "float64"
    assert one.failure == two.failure


def test_a_factory_that_takes_a_dtype_is_built_in_float64():
    """Where it can draw its weights in float64 itself, it does."""
    seen = []

    def build(dtype=torch.float32):
        seen.append(dtype)
        subject = models.Summing()
        subject.table, subject.out = subject.table.to(dtype), subject.out.to(dtype)
        subject.new_cache = lambda batch: torch.zeros(batch, 8, dtype=dtype)
        return subject

    factory = as_factory(build)
    assert isinstance(factory, Factory)
    assert factory.dtypes == ("float32", "float64")
    assert torch.float64 in seen


def test_float64_asked_for_is_the_lane_too():
    """`--dtype float64` and the drawn lane are the same subject: a counterexample of one replays
    in the other."""
    drawn = as_factory(numerics.Preallocated).build(3, "float64", {})
    asked = as_factory(numerics.Preallocated, options=Options(dtype="float64")).build(
        3, "float64", {}
    )
    assert torch.equal(run_uncached(drawn, CASE.tokens), run_uncached(asked, CASE.tokens))


def test_what_is_written_while_the_twin_runs_is_the_twins_own():
    """A table made on first use is float64 there, and float32 where the subject makes its own."""
    subject = out_of_reach.LazyTable()
    case = Case(CASE.tokens, CASE.schedule)
    assert check(subject, case).status == "agreed"
    assert subject.net.scales.dtype == subject.net.again.dtype == torch.float32
    hunt = fuzz(subject, examples=60, seed=0)
    assert (hunt.verdict, hunt.worst_excess < 0.5) == ("agreed", True)
    assert subject.net.scales.dtype == torch.float32
    fresh = out_of_reach.LazyTable()
    twin = Float64Subject(fresh)
    first = run_uncached(twin, CASE.tokens)
    assert not hasattr(fresh.net, "scales")
    assert run_uncached(fresh, CASE.tokens).dtype == torch.float32
    assert torch.equal(run_uncached(twin, CASE.tokens), first)


@pytest.mark.parametrize(
    "make", [out_of_reach.Slots, out_of_reach.Named, out_of_reach.HasATwinOfItsOwn]
)
def test_any_object_may_be_a_subject(make):
    """Without a dictionary of attributes, or with attributes that are called as ours are."""
    hunt = fuzz(make, examples=40, seed=0)
    assert (hunt.verdict, hunt.discarded) == ("agreed", 0)


@pytest.mark.parametrize(
    "make",
    [
        out_of_reach.ThroughNumpy,
        out_of_reach.InGlobals,
        out_of_reach.Scripted,
        out_of_reach.ScriptedInside,
        numerics.InHalfInside,
        out_of_reach.HardCodedCache,
    ],
)
def test_a_subject_that_keeps_an_island_is_not_put_into_float64(make):
    """Its rounding would be taken for a fault there; in its own dtype it agrees."""
    factory = as_factory(make)
    assert "float64" not in factory.dtypes
    assert fuzz(factory, examples=40, seed=0).verdict == "agreed"


def test_raising_in_float64_alone_is_no_divergence():
    """A path that refuses what it was not written for is discarded there, and judged in its own
    dtype."""

    class Asserts(numerics.Preallocated):
        def cached(self, tokens, cache):
            assert cache[0] < 4 or cache[1].dtype == torch.float32
            return super().cached(tokens, cache)

    hunt = fuzz(Asserts, examples=60, seed=0)
    assert hunt.verdict == "agreed"
    assert hunt.reasons[0].startswith("not in float64: the cached path raised AssertionError")


def test_a_subject_with_a_cache_of_its_own_is_the_same_in_both_lanes():
    """What is allocated on first use in one lane is not met in the other."""
    shared = out_of_reach.AllocatesOnFirstUse()
    hunt = fuzz(shared, examples=60, seed=0)
    assert (hunt.verdict, hunt.discarded) == ("agreed", 0)


def test_what_is_written_into_an_object_that_held_nothing_is_taken_away_too():
    """A subject whose weights are its class's own begins without attributes."""

    class Bare:
        vocab_size, max_length = 11, None
        inner = models.Summing()

        def uncached(self, tokens):
            if not hasattr(self, "table"):
                self.table = torch.ones(1)
            return self.inner.uncached(tokens) * self.table

    bare = Bare()
    with Twin(bare).running():
        run_uncached(bare, CASE.tokens)
        assert bare.table.dtype == torch.float64
    assert vars(bare) == {}
