"""Comparison: every position of every row counts, and so does every entry that is not finite."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from kvfuzz.case.case import Case
from kvfuzz.oracle.compare import compare, verdict_from
from kvfuzz.oracle.tolerance import constant, factor

CASE = Case(((1, 2, 3), (4, 5, 6)), (2, 1))


def within(uncached):
    """The fallback's tolerance for a wide decoder."""
    return constant(uncached, 8, uncached.dtype)


def versus(cached, uncached):
    """Both compared, within that."""
    return compare(cached, uncached, within(uncached))


def logits():
    generator = torch.Generator().manual_seed(0)
    return torch.randn(2, 3, 5, generator=generator, dtype=torch.float64)


@given(
    st.integers(0, 1),
    st.integers(0, 2),
    st.integers(0, 4),
    st.sampled_from([1e-6, 1.0, 1e6, math.inf, -math.inf, math.nan]),
)
def test_a_difference_anywhere_diverges_and_is_named(row, position, token, size):
    """One wrong entry, at whatever place and of whatever size, is found where it is."""
    wrong = logits()
    wrong[row, position, token] += size
    verdict = verdict_from(versus(wrong, logits()), CASE)
    assert verdict.status == "diverged"
    assert (verdict.first.row, verdict.first.position, verdict.first.token) == (
        row,
        position,
        token,
    )
    assert verdict.first.step == (0 if position < 2 else 1)
    assert verdict.excess > 1


def test_equal_logits_agree():
    """No difference, no excess, every position counted."""
    verdict = verdict_from(versus(logits(), logits()), CASE)
    assert (verdict.status, verdict.excess, verdict.positions) == ("agreed", 0.0, 6)


def test_the_earliest_position_is_named_not_the_largest_difference():
    """A reader starts where the paths first differ."""
    wrong = logits()
    wrong[0, 2] += 100
    wrong[1, 1] += 1
    first = verdict_from(versus(wrong, logits()), CASE).first
    assert (first.row, first.position) == (1, 1)


@pytest.mark.parametrize(("times", "status"), [(0.99, "agreed"), (1.01, "diverged")])
def test_the_bound_is_where_the_tolerance_says(times, status):
    """Just below the allowed difference agrees, just above diverges."""
    expected = logits()
    wrong = expected.clone()
    bound = within(expected).allowed[0, 0, 0]
    wrong[0, 0, 0] += times * bound
    assert verdict_from(versus(wrong, expected), CASE).status == status


def test_equal_infinities_are_equal():
    """Vocabulary entries that a model masks with -inf in both paths are no difference."""
    masked = logits()
    masked[:, :, 0] = -math.inf
    verdict = verdict_from(versus(masked, masked.clone()), CASE)
    assert (verdict.status, verdict.positions) == ("agreed", 6)


def test_opposite_infinities_differ():
    """inf in one path and -inf in the other is a divergence."""
    one, other = logits(), logits()
    one[0, 0, 0], other[0, 0, 0] = math.inf, -math.inf
    assert verdict_from(versus(one, other), CASE).status == "diverged"


def test_nan_in_both_paths_says_nothing():
    """The case is discarded, and not counted as agreement."""
    both = logits()
    both[0, 1, 2] = math.nan
    verdict = verdict_from(versus(both, both.clone()), CASE)
    assert (verdict.status, verdict.reason) == ("discarded", "both paths gave NaN")


def test_nan_in_both_paths_does_not_hide_a_difference_elsewhere():
    """Not even one in the same position."""
    one, other = logits(), logits()
    one[0, 1, 2] = other[0, 1, 2] = math.nan
    one[0, 1, 3] += 1
    assert verdict_from(versus(one, other), CASE).status == "diverged"


def test_all_zero_logits_say_nothing():
    """Zeros in both paths are no evidence."""
    zero = torch.zeros(2, 3, 5)
    assert verdict_from(versus(zero, zero), CASE).status == "discarded"


def test_zero_against_something_diverges():
    """A row of scale 0 allows no difference at all."""
    zero = torch.zeros(2, 3, 5)
    other = zero.clone()
    other[0, 0, 0] = 1e-30
    assert verdict_from(versus(other, zero), CASE).status == "diverged"


def test_the_cached_path_cannot_widen_its_own_tolerance():
    """However large the cached logits are, what is allowed comes from the uncached ones."""
    expected = logits()
    huge = expected * 1e9
    assert torch.equal(versus(huge, expected).allowed, versus(expected, expected).allowed)


def test_the_allowed_difference_is_factor_times_eps_times_scale():
    """The formula of the tolerance, by hand: 256 x 2^-23 x 4 for a wide float32 row."""
    row = torch.tensor([[[1.0, -4.0]]])
    for width in (8, None):
        found = constant(row, width, torch.float32)
        assert found.allowed.tolist() == [[[256 * 2**-23 * 4] * 2]]
        assert (found.basis, found.weak.tolist()) == ("constant", [[False]])


def test_the_impact_has_three_measures():
    """Argmax flips, KL divergence and relative L2, by hand."""
    expected = torch.zeros(1, 2, 2, dtype=torch.float64)
    expected[0, :, 0] = 1.0
    wrong = expected.clone()
    wrong[0, 1] = torch.tensor([0.0, 1.0])
    impact = verdict_from(versus(wrong, expected), Case(((1, 2),), (2,))).impact
    p = 1 / (1 + math.exp(-1))
    assert (impact.positions, impact.argmax_flips) == (2, 1)
    assert impact.kl == pytest.approx(p * 1 + (1 - p) * -1)
    assert impact.relative_l2 == pytest.approx(math.sqrt(2) / math.sqrt(2))


def test_the_impact_never_decides():
    """A difference that moves no prediction diverges; a flip between two equals does not."""
    expected = torch.tensor([[[5.0, 1.0, 0.0]]], dtype=torch.float64)
    case = Case(((1,),), (1,))
    verdict = verdict_from(versus(expected * (1 + 1e-6), expected), case)
    assert (verdict.status, verdict.impact.argmax_flips) == ("diverged", 0)
    tied = torch.tensor([[[5.0, 5.0 - 1e-15, 0.0]]], dtype=torch.float64)
    assert verdict_from(versus(tied.flip(-1).roll(-1, -1), tied), case).status == "agreed"


def test_the_impact_skips_positions_that_are_not_finite():
    """NaN has no most likely token."""
    wrong = logits()
    wrong[0, 1, 2] = math.nan
    impact = verdict_from(versus(wrong, logits()), CASE).impact
    assert (impact.positions, impact.argmax_flips, impact.kl) == (5, 0, 0.0)
    nowhere = verdict_from(versus(logits() * math.nan, logits()), CASE).impact
    assert (nowhere.positions, nowhere.kl, nowhere.relative_l2) == (0, None, None)


def test_narrow_decoders_have_larger_factors():
    """Below a width of 8, and again below 4, float64 and float32 take another constant."""
    for dtype in (torch.float64, torch.float32):
        assert factor(dtype, 3) > factor(dtype, 4) == factor(dtype, 7) > factor(dtype, 8) == 256
        assert factor(dtype, None) == 256


def test_a_lower_precision_of_the_cached_path_does_not_widen_the_tolerance():
    """bfloat16 logits from the cached path are judged by the uncached path's float32."""
    expected = logits().float()
    assert verdict_from(versus(expected.bfloat16(), expected), CASE).status == "diverged"
