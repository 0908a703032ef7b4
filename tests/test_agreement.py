"""The contract on decoders as users write them."""

from dataclasses import replace

import pytest
import torch

from kvfuzz.case.case import Case
from kvfuzz.errors import InvalidCase, InvalidSubject
from kvfuzz.oracle import reference
from kvfuzz.oracle.agreement import check, check_against, quick_check
from kvfuzz.oracle.reference import find_reference
from kvfuzz.search.judge import KnownReference, judge_quickly
from kvfuzz.subjects.zoo.decoder import Decoder
from tests.subjects import models, raising

CASE = Case(((1, 2, 3, 4), (5, 6, 7, 8)), (2, 1, 1))


def test_a_right_decoder_agrees_at_every_position():
    """Two rows of four tokens are eight comparisons."""
    verdict = check(models.Summing(), CASE)
    assert (verdict.status, verdict.positions) == ("agreed", 8)


def test_a_wrong_step_is_named():
    """What goes wrong on the first decode is reported at its step and position."""
    first = check(models.ForgetsOnDecode(), CASE).first
    assert (first.step, first.kind, first.position) == (1, "decode", 2)


def test_a_cached_path_that_raises_alone_diverges_with_its_error():
    """The step and the first line of the error are in the verdict."""
    verdict = check(raising.RaisesOnChunks(), Case(((1, 2, 3),), (1, 2)))
    assert verdict.status == "diverged"
    assert verdict.error == "the cached path raised RuntimeError: only one token at a time"
    assert verdict.error_step == 1


def test_an_uncached_path_that_raises_alone_diverges_with_its_error():
    """A prefix that is valid with a cache is valid without."""
    verdict = check(raising.UncachedRaises(), Case(((1, 2, 3),), (1, 2)))
    assert verdict.status == "diverged"
    assert verdict.error == "the uncached path raised ValueError: three"


def test_a_case_on_which_both_paths_raise_is_discarded():
    """Nothing was compared, so it is neither agreement nor divergence."""
    verdict = check(raising.RaisesInBoth(), CASE)
    assert (verdict.status, verdict.positions) == ("discarded", 0)


def test_nan_in_one_path_diverges():
    """NaN compares false with everything; it is still a difference."""
    verdict = check(raising.NanInCached(), CASE)
    assert verdict.status == "diverged"
    assert verdict.first.position == 2


def test_nan_in_both_paths_is_discarded():
    """NaN everywhere says nothing about the cache."""
    assert check(raising.NanInBoth(), CASE).status == "discarded"


def test_an_uncached_path_that_is_not_causal_is_run_prefix_by_prefix():
    """The last logits of each prefix count; the verdict says that prefixes were run."""
    verdict = check(models.SeesTheFuture(), CASE)
    assert (verdict.status, verdict.prefixwise) == ("agreed", True)


def test_a_future_that_both_paths_see_alike_is_found_by_the_prefix_alone():
    """In one call both paths leak the same, and agree with each other; by the contract the last
    logits of each prefix count, and with those neither agrees."""

    class BothLeak(models.SeesTheFuture):
        def cached(self, tokens, cache):
            return self.uncached(tokens), cache

    verdict = check(BothLeak(), Case(((1, 2, 3, 4),), (4,)))
    assert (verdict.status, verdict.prefixwise) == ("diverged", True)
    assert verdict.first.position == 0


def test_a_non_causal_uncached_path_does_not_hide_a_wrong_cache():
    """Prefix by prefix, a wrong decode is still found where it is."""

    class Both(models.SeesTheFuture, models.ForgetsOnDecode):
        pass

    verdict = check(Both(), CASE)
    assert (verdict.status, verdict.prefixwise) == ("diverged", True)
    assert verdict.first.position == 2


def test_a_cache_that_writes_over_its_own_logits_is_judged_by_what_it_returned():
    """Logits are taken when they are returned, not when all steps are done."""
    assert check(models.OverwritesItsLogits(), CASE).status == "agreed"


@pytest.mark.parametrize(
    ("subject", "message"),
    [
        (
            raising.LastLogitsOnly(),
            r"shape \(2, 1, 11\) for 2 tokens in 2 rows, expected \(2, 2, 11\)",
        ),
        (raising.NoTuple(), r"should return \(logits, cache\), got Tensor"),
        (raising.NoCacheMethod(), r"has no method new_cache\(batch\)"),
        (raising.ExtraArgument(), r"cached should be a method cached\(tokens, cache\)"),
        (raising.BadVocabulary(), "vocab_size should be a positive integer, got 0"),
    ],
)
def test_a_subject_that_breaks_the_protocol_is_refused(subject, message):
    """The message says what was seen and what was expected."""
    with pytest.raises(InvalidSubject, match=message):
        check(subject, CASE)


def test_tokens_out_of_range_are_refused_with_their_place():
    """The token, its row, its position and the vocabulary are named."""
    with pytest.raises(InvalidCase, match=r"token 11 at row 0, position 1 .* \(vocab_size 11"):
        check(models.Summing(), Case(((1, 11),), (2,)))


def test_rows_that_are_too_long_are_refused():
    """The length and the limit are named."""
    with pytest.raises(InvalidCase, match=r"rows of 4 tokens are longer .* \(max_length 3"):
        check(models.ShortSighted(), CASE)


def test_the_same_case_gives_the_same_verdict():
    """Bit for bit, also after other cases on the same subject."""
    subject = Decoder(seed=1)
    before = check(subject, CASE)
    check(subject, Case(((9, 8, 7),), (3,)))
    assert check(subject, CASE) == before


def test_a_subject_without_a_name_is_called_subject():
    """In the one line that says what its cached path should return."""

    class Forgetful(models.Summing):
        def cached(self, tokens, cache):
            return super().cached(tokens, cache)[0]

    expected = find_reference(models.Summing(), CASE)
    known = KnownReference(CASE, models.Summing(), expected)
    for judge in (
        lambda: check_against(expected, Forgetful(), CASE),
        lambda: judge_quickly(Forgetful(), CASE, known=known),
        lambda: judge_quickly(Forgetful(), CASE),
    ):
        with pytest.raises(InvalidSubject, match=r"^subject\.cached\(\) should return \(logits"):
            judge()


def test_what_a_subject_draws_from_the_global_generator_is_part_of_the_case():
    """Whatever was drawn before: both paths begin at the seed of the case."""

    class Draws(models.Summing):
        def cached(self, tokens, cache):
            logits, cache = super().cached(tokens, cache)
            return logits + torch.rand(1), cache

    verdicts = []
    for before in (1, 2):
        torch.manual_seed(before)
        verdicts.append(check(Draws(), CASE))
    assert verdicts[0].diverged
    assert verdicts[0] == verdicts[1]


def test_grad_mode_is_off_while_a_subject_runs_and_restored_after():
    """Recording gradients would double the time of every pass."""
    seen = []

    class Watching(models.Summing):
        def uncached(self, tokens):
            seen.append(torch.is_grad_enabled())
            return super().uncached(tokens)

        def cached(self, tokens, cache):
            seen.append(torch.is_grad_enabled())
            return super().cached(tokens, cache)

    check(Watching(), CASE)
    assert seen
    assert not any(seen)
    assert torch.is_grad_enabled()


def test_a_subject_that_writes_into_its_tokens_harms_nobody():
    """Each step gets its own copy of the tokens."""

    class Vandal(models.Summing):
        def cached(self, tokens, cache):
            answer = super().cached(tokens, cache)
            tokens.zero_()
            return answer

    assert check(Vandal(), CASE).status == "agreed"


class CountsRuns(Decoder):
    """The built-in decoder; counts how often its noise is measured."""

    measured = 0

    def perturbed(self, *args):
        """Counted."""
        self.measured += 1
        return super().perturbed(*args)


class StandsOff(CountsRuns):
    """Its cached logits are off by a share of themselves."""

    share = 0.0

    def cached(self, tokens, cache):
        """The clean logits, scaled."""
        logits, cache = super().cached(tokens, cache)
        return logits * (1 + self.share), cache


@pytest.mark.parametrize(
    ("share", "status", "measured"),
    [(0.0, "agreed", 0), (5e-15, "agreed", 1), (1e-9, "diverged", 1)],
)
def test_a_quick_check_measures_noise_where_that_decides(share, status, measured):
    """Not where the logits differ by less than the smallest tolerance."""
    subject = StandsOff(dtype="float64")
    subject.share = share
    verdict = quick_check(subject, replace(CASE, dtype="float64"))
    assert (verdict.status, subject.measured) == (status, measured)


def test_a_quick_check_runs_the_cached_path_once():
    """What a first run leaves behind might make the second one differ."""

    subject = StandsOff(dtype="float64")
    subject.share = 5e-15
    run = subject.cached
    calls = []

    def cached(tokens, cache):
        calls.append(tokens)
        return run(tokens, cache)

    subject.cached = cached
    assert quick_check(subject, replace(CASE, dtype="float64")).status == "agreed"
    assert (len(calls), subject.measured) == (len(CASE.schedule), 1)


@pytest.mark.parametrize(
    "subject", [models.Summing, models.ForgetsOnDecode, raising.RaisesOnChunks, raising.NanInCached]
)
def test_a_quick_check_diverges_where_a_check_does(subject):
    """And reports the same difference or error."""
    quick, whole = quick_check(subject(), CASE), check(subject(), CASE)
    assert repr((quick.diverged, quick.first, quick.error)) == repr(
        (whole.diverged, whole.first, whole.error)
    )


def test_clear_agreements_need_no_noise(monkeypatch):
    """It is measured once logits differ by more than the least tolerance, and then the same logits
    are judged."""
    calls, measured = [], []
    real = reference.logits_noise
    monkeypatch.setattr(reference, "logits_noise", lambda *a: measured.append(a) or real(*a))

    class Off(models.Summing):
        def cached(self, tokens, cache):
            calls.append(tokens)
            logits, cache = super().cached(tokens, cache)
            return logits * (1 + self.off), cache

    for off, times, status in ((0.0, 0, "agreed"), (1.2e-6, 1, "agreed"), (1e-4, 1, "diverged")):
        del calls[:], measured[:]
        subject = Off()
        subject.off = off
        assert check(subject, CASE, trace=False).status == status
        assert (len(measured), len(calls)) == (times, len(CASE.schedule))


def test_a_cached_path_that_changes_the_weights_does_not_widen_its_tolerance():
    """The noise of what it leaves behind would allow any difference."""

    class Corrupts(models.Summing):
        fed = 0

        def cached(self, tokens, cache):
            logits, cache = super().cached(tokens, cache)
            self.fed += tokens.shape[1]
            if self.fed == CASE.length:
                self.table.mul_(1e6)
            return logits * (1 + 1e-4), cache

    subject = Corrupts()
    verdict = check(subject, CASE, trace=False)
    assert (verdict.status, verdict.basis) == ("diverged", "least")
    assert find_reference(subject, CASE).tolerance.allowed.min() > 1e-4 * verdict.first.uncached


def test_a_cached_path_that_spoils_the_uncached_one_does_not_widen_its_tolerance():
    """It adds and takes away a large number from then on, which moves logits a little."""

    class Spoils(models.Summing):
        shift = 0.0

        def uncached(self, tokens):
            return super().uncached(tokens) + self.shift - self.shift

        def cached(self, tokens, cache):
            self.shift = 2e6
            logits, cache = super().cached(tokens, cache)
            return logits * 1.05, cache

    assert check(Spoils(), CASE, trace=False).status == "diverged"
