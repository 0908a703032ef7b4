"""The tolerance: its formula, which depends on the uncached path alone."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from kvfuzz.case.case import Case
from kvfuzz.oracle.agreement import check, check_against
from kvfuzz.oracle.compare import compare, verdict_from
from kvfuzz.oracle.reference import find_reference, tolerance_for
from kvfuzz.oracle.tolerance import constant, declared, measured
from kvfuzz.search.strategies import cases, space_of
from kvfuzz.subjects.loading import load
from mutants.library.registry import library
from tests.subjects import models

ZOO = load("zoo")
CASE = Case(((1, 2, 3, 4, 5, 6),), (2, 1, 3))


def test_the_bound_is_kappa_times_the_floor():
    """8 x (sqrt(noise x largest noise) + 2 x 2^-24 x scale), by hand."""
    logits = torch.tensor([[[1.0, -4.0], [2.0, 0.5]]])
    noise = torch.tensor([[1e-4, 4e-4]])
    found = measured(logits, noise, torch.float32)
    expected = [8 * (2e-4 + 8 * 2**-24), 8 * (4e-4 + 4 * 2**-24)]
    assert found.allowed[0, :, 0].tolist() == pytest.approx(expected)
    assert torch.equal(found.allowed[..., 0], found.allowed[..., 1])
    assert found.basis == "measured"


@pytest.mark.parametrize(
    ("dtype", "kappa", "u"),
    [
        (torch.float64, 8, 2**-53),
        (torch.float32, 8, 2**-24),
        (torch.bfloat16, 6, 2**-8),
        (torch.float16, 6, 2**-11),
    ],
)
def test_without_noise_the_bound_is_kappa_roundings(dtype, kappa, u):
    """2 u of the scale, times kappa."""
    logits = torch.tensor([[[0.25, 1.0]]])
    found = measured(logits, torch.zeros(1, 1), dtype)
    assert found.allowed[0, 0, 0].item() == kappa * 2 * u


def test_where_three_tenths_of_the_scale_are_allowed_a_position_is_weak():
    """Position by position: the quiet one still counts. A leeway makes more of them weak."""
    logits = torch.ones(1, 2, 3)
    found = measured(logits, torch.tensor([[1e-9, 0.038]]), torch.float32)
    assert found.weak.tolist() == [[False, True]]
    assert bool((found.allowed[:, 1] > 0.3).all())
    below, beyond = (
        measured(logits, torch.full((1, 2), 0.03), torch.float32, n).weak for n in (1.0, 2.0)
    )
    assert (bool(below.any()), bool(beyond.all())) == (False, True)


def test_weak_positions_are_counted_apart_and_only_weak_ones_are_no_agreement():
    """A pass is made of positions that could have failed."""
    logits = torch.ones(1, 6, 3)
    noise = torch.tensor([[1e-9, 1e-9, 0.06, 0.06, 0.06, 0.06]])
    verdict = verdict_from(compare(logits, logits, measured(logits, noise, torch.float32)), CASE)
    assert (verdict.status, verdict.positions, verdict.weak_positions) == ("agreed", 2, 4)
    everywhere = measured(logits, torch.full((1, 6), 0.06), torch.float32)
    verdict = verdict_from(compare(logits, logits, everywhere), CASE)
    assert (verdict.status, verdict.positions, verdict.weak_positions) == ("weak", 0, 6)


def test_a_difference_beyond_a_weak_bound_diverges():
    """Noise excuses what it explains, and no more."""
    logits = torch.ones(1, 6, 3)
    everywhere = measured(logits, torch.full((1, 6), 0.06), torch.float32)
    assert verdict_from(compare(2 * logits, logits, everywhere), CASE).status == "diverged"


def test_noise_that_is_not_finite_makes_its_own_position_weak_and_no_other():
    """A perturbation that overflows says nothing about its position."""
    logits = torch.ones(1, 3, 2)
    noise = torch.tensor([[1e-8, math.inf, 1e-8]])
    found = measured(logits, noise, torch.float32)
    assert found.weak.tolist() == [[False, True, False]]
    assert found.allowed[0, [0, 2]].isfinite().all()
    wrong = logits.clone()
    wrong[0, 1, 0] = math.inf
    assert verdict_from(compare(wrong, logits, found), CASE).status == "diverged"


def test_an_outlier_is_judged_by_its_own_size():
    """-1e9 over a masked entry does not count towards the scale, and is its own scale."""
    logits = torch.tensor([[[1.0, 2.0, -1e9, 0.5]]], dtype=torch.float64)
    found = measured(logits, torch.zeros(1, 1), torch.float64)
    assert found.allowed[0, 0].tolist() == pytest.approx(
        [8 * 2 * 2**-53 * size for size in (2, 2, 1e9, 2)]
    )


def test_a_leeway_multiplies_what_is_allowed():
    """That of a calibration."""
    logits, noise = torch.ones(1, 2, 3), torch.full((1, 2), 1e-6)
    one, four = (measured(logits, noise, torch.float32, n) for n in (1.0, 4.0))
    assert torch.equal(4 * one.allowed, four.allowed)
    one, four = (constant(logits, 8, torch.float32, n) for n in (1.0, 4.0))
    assert torch.equal(4 * one.allowed, four.allowed)


def test_a_declared_bound_is_a_share_of_the_scale():
    """And says that it is declared."""
    found = declared(torch.tensor([[[2.0, -8.0]]]), 0.03, torch.int8)
    assert found.allowed[0, 0].tolist() == pytest.approx([0.24, 0.24])
    assert (found.basis, bool(found.weak.any())) == ("declared", False)


@settings(max_examples=60, deadline=None)
@given(
    cases(space_of(ZOO)), st.sampled_from(sorted(m.id for m in library().values() if not m.both))
)
def test_no_fault_of_the_cached_path_changes_what_is_allowed(case, mutant_id):
    """Bit for bit: the tolerance of the faulty decoder is that of the clean one."""
    clean, faulty = (ZOO.subject(case) for _ in range(2))
    faulty = library()[mutant_id].into(faulty, case.dtype)
    one, other = find_reference(clean, case).tolerance, find_reference(faulty, case).tolerance
    assert torch.equal(one.allowed, other.allowed)
    assert torch.equal(one.weak, other.weak)


def test_a_verdict_allows_the_same_however_large_the_cached_logits_are():
    """What is allowed in the end is what the uncached path allows."""

    class Slips(models.Summing):
        factor = 1.0

        def cached(self, tokens, cache):
            logits, cache = super().cached(tokens, cache)
            return logits * self.factor, cache

    Slips.factor = 1.01
    small = check(Slips(), CASE)
    Slips.factor = 1e6
    assert (small.status, small.allowed) == ("diverged", check(Slips(), CASE).allowed)


def test_the_tolerance_is_known_before_the_cached_path_has_run():
    """Here the cached path cannot even be called."""

    class NoCache(models.Summing):
        def new_cache(self, batch):
            raise AssertionError

        cached = new_cache

    subject = NoCache()
    logits = subject.uncached(torch.tensor(CASE.tokens))
    assert tolerance_for(subject, CASE, logits).basis == "measured"


def test_a_noisier_uncached_path_does_widen_the_tolerance():
    """The test above could fail: the uncached path's own distance to its float64 twin counts."""

    class Noisy(models.Summing):
        def uncached(self, tokens):
            logits = super().uncached(tokens)
            return logits.half().to(logits.dtype) if logits.dtype == torch.float32 else logits

    plain, noisy = (
        find_reference(kind(), CASE).tolerance.allowed for kind in (models.Summing, Noisy)
    )
    assert bool((noisy > 10 * plain).all())


def test_the_verdict_says_where_its_tolerance_comes_from():
    """And at which position it came closest to it."""
    subject = models.Summing()
    assert (check(subject, CASE).status, check(subject, CASE).basis) == ("agreed", "least")
    verdict = check_against(find_reference(subject, CASE), subject, CASE)
    assert (verdict.status, verdict.basis) == ("agreed", "measured")
    row, position = verdict.worst
    assert row == 0
    assert 0 <= position < 6
