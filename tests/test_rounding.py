"""The noise of a cache that rounds on purpose: measured by its own rounding of its entries."""

from dataclasses import replace

import pytest
import torch

from kvfuzz.case.case import Case
from kvfuzz.oracle.agreement import check
from kvfuzz.oracle.reference import tolerance_for
from kvfuzz.oracle.rounding import rounding_noise
from kvfuzz.search.hunt import fuzz
from kvfuzz.subjects.dtypes import ROUNDOFF
from kvfuzz.subjects.loading import load
from kvfuzz.subjects.precision import move_casts
from kvfuzz.subjects.run import run_uncached
from tests.subjects import numerics

CASE = Case(((3, 1, 4, 1, 5, 9),), (2, 1, 1, 1, 1))
STORED = torch.int8


@pytest.mark.parametrize("dtype", [torch.int8, torch.float8_e4m3fn, torch.bfloat16, torch.float16])
def test_a_moved_cast_gives_a_neighbour_of_each_number(dtype):
    """One step up or down, and never over the edge or to NaN."""
    limit = (torch.iinfo if dtype == torch.int8 else torch.finfo)(dtype).max
    values = torch.cat((torch.randn(200) * min(limit, 100) / 4, torch.tensor([0.0, limit, -limit])))
    values = values.clamp(-limit, limit)
    results = []
    assert move_casts(lambda: results.append(values.to(dtype)), dtype, 0) == 1
    there, moved = values.to(dtype), results[0]
    assert (moved.double() != there.double()).double().mean() > 0.95
    assert bool(moved.double().isfinite().all())
    if dtype == torch.int8:
        assert int((moved.int() - there.int()).abs().max()) <= 2  # inside the limits, then a step
    else:
        # The next number is at most two roundoffs away, or one subnormal number.
        step = 2 * ROUNDOFF[dtype] * there.double().abs() + 2.0**-9
        assert bool(((moved.double() - there.double()).abs() <= step).all())


def test_only_casts_to_that_dtype_from_a_finer_one_are_moved():
    """Neither those to another, nor a copy of what was rounded before."""
    found = []

    def run():
        rounded = torch.ones(4, dtype=torch.int8)
        found.extend((torch.ones(4).to(torch.bfloat16), rounded.clone(), rounded.float()))

    assert move_casts(run, torch.int8, 0) == 0
    assert all(bool((each == 1).all()) for each in found)


@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_a_rounded_cache_is_allowed_what_its_rounding_does_and_no_more(dtype):
    """The allowed difference is less than 20 times the actual one, not hundreds of times."""
    case = replace(CASE, dtype=dtype)
    subject = numerics.Int8PerToken()
    verdict = check(subject, case)
    assert (verdict.status, verdict.dtype, verdict.basis) == ("agreed", "int8", "measured")
    assert 0.05 < verdict.excess < 0.5


@pytest.mark.parametrize("seed", range(5))
def test_entries_read_under_another_scale_diverge(seed):
    """They are wrong by many steps, where a rounding is wrong by half of one."""
    hunt = fuzz(numerics.Int8LatestScale, seed=seed, examples=50, folder=None, locate=False)
    assert hunt.verdict == "diverged"
    assert hunt.failure.verdict.dtype == "int8"


def test_a_right_int8_cache_agrees_and_its_cases_are_no_weak_ones():
    """Weak cases would say nothing about it."""
    hunt = fuzz(numerics.Int8PerToken, seed=0, examples=25, folder=None)
    assert (hunt.verdict, hunt.weak) == ("agreed", 0)
    assert hunt.worst_excess < 0.5


def test_a_cache_that_never_casts_to_its_dtype_is_not_measured_by_its_rounding():
    """So the roundoff of the dtype in all weights counts, as before."""
    subject = numerics.Int8PerToken()
    assert rounding_noise(subject, CASE.tokens, CASE, torch.float8_e5m2) is None
    assert rounding_noise(numerics.Preallocated(), CASE.tokens, CASE, STORED) is None


def test_a_path_that_raises_is_not_measured():
    """Its verdict is that of the case."""

    class Raises(numerics.Int8PerToken):
        def cached(self, tokens, cache):
            raise RuntimeError("no")

    assert rounding_noise(Raises(), CASE.tokens, CASE, STORED) is None


def test_the_measured_rounding_never_widens_the_tolerance(monkeypatch):
    """A fault that makes the cached path sensitive cannot excuse itself: the uncached path caps
    what is allowed."""

    class Loud(numerics.Int8PerToken):
        def cached(self, tokens, cache):
            logits, cache = super().cached(tokens, cache)
            return logits * 1e6, cache

    case = replace(CASE, dtype="float32")
    whole = run_uncached(Loud(), case.tokens)
    loud, right = (tolerance_for(each(), case, whole) for each in (Loud, numerics.Int8PerToken))
    assert check(Loud(), case).status == "diverged"
    monkeypatch.setattr("kvfuzz.oracle.reference.rounding_noise", lambda *_: None)
    by_weights = tolerance_for(numerics.Int8PerToken(), case, whole)
    assert torch.equal(loud.allowed, by_weights.allowed)
    assert bool((right.allowed < by_weights.allowed / 3).all())


def test_the_int8_cache_of_the_zoo_needs_no_declared_bound():
    """It is measured; nearly none of its cases are weak."""
    hunt = fuzz("zoo:int8", seed=0, examples=20, folder=None)
    assert hunt.verdict == "agreed"
    assert hunt.bases == ("measured",)
    assert hunt.weak <= 1
    assert load("zoo:int8").subject(CASE).cache_dtype == "int8"
