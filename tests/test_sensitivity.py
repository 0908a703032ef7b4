"""Sensitivity: loss of precision that logits hide, and cases that could not have failed."""

import math

import pytest
import torch

from kvfuzz.case.case import Case
from kvfuzz.cli.main import main
from kvfuzz.errors import InvalidSubject
from kvfuzz.oracle.agreement import check
from kvfuzz.oracle.sensitivity import lost_precision
from kvfuzz.report.text import hunt_text
from kvfuzz.search.hunt import fuzz
from kvfuzz.search.replay import replay
from kvfuzz.subjects.loading import Options, load
from kvfuzz.subjects.run import run_cached
from tests.subjects import models, numerics, out_of_reach

CASE = Case(((1, 5, 9, 2, 8, 3), (4, 4, 1, 0, 6, 7)), (2, 1, 1, 2))


def test_a_lossy_cast_of_the_cached_path_diverges_though_the_logits_agree():
    """No tolerance decides: the operation is named."""
    verdict = check(numerics.RoundsAside(), CASE)
    assert (verdict.status, verdict.first) == ("diverged", None)
    assert verdict.precision == (
        "the cached path rounds float32 to bfloat16 (aten._to_copy.default), which the uncached "
        "path never does"
    )


def test_a_cache_of_eight_bits_in_a_bfloat16_model_is_caught():
    """Its rounding is of the size of the noise; its casts are not."""
    verdict = check(numerics.InHalfAndQuarter(), CASE)
    assert verdict.status == "diverged"
    assert lost_precision(numerics.InHalfAndQuarter(), CASE, torch.bfloat16) == (
        "the cached path rounds bfloat16 to float8_e4m3fn (aten._to_copy.default), which the "
        "uncached path never does"
    )


@pytest.mark.parametrize(
    "subject",
    [
        models.Summing,
        numerics.Preallocated,
        numerics.InHalf,
        numerics.RoundsInBoth,
        numerics.MasksInCached,
        numerics.MorePrecise,
        numerics.StoresBytes,
        numerics.MakesSmaller,
    ],
)
def test_what_is_no_loss_is_not_called_one(subject):
    """A cast in both paths, a mask of infinities, an island that goes up and comes back, a state
    that is kept more precisely than the model computes, bytes that are only looked at otherwise."""
    made = subject()
    dtype = torch.bfloat16 if subject is numerics.InHalf else torch.float32
    assert lost_precision(made, CASE, dtype) is None
    assert check(made, CASE).status in ("agreed", "weak")


def test_a_clean_decoder_loses_nothing_in_any_dtype():
    """Nor does a transformers model in bfloat16, with its islands of float32."""
    for dtype in ("float64", "float32", "bfloat16", "float16"):
        case = Case(CASE.tokens, CASE.schedule, dtype=dtype)
        subject = load("zoo:llama").subject(case)
        assert lost_precision(subject, case, getattr(torch, dtype)) is None
    pytest.importorskip("transformers")
    factory = load("transformers:llama")
    case = Case(CASE.tokens, CASE.schedule, dtype="bfloat16", config=factory.first_config())
    assert lost_precision(factory.subject(case), case, torch.bfloat16) is None


def test_a_hunt_reports_and_saves_a_loss_of_precision(tmp_path):
    """Shrunk, printed and replayed like any divergence."""
    hunt = fuzz(numerics.RoundsAside, seed=0, folder=tmp_path)
    text = hunt_text(hunt)
    assert text.startswith("DIVERGED in precision: the cached path rounds float")
    assert hunt.failure.case.schedule == (1,)
    assert replay(hunt.path).verdict == hunt.failure.verdict


def test_a_declared_rounding_is_exempt_and_has_its_own_bound():
    """The noise is that of the declared dtype, and nothing but its cast is excused."""
    case = Case(CASE.tokens, CASE.schedule, dtype="float32")
    assert check(numerics.RoundsTo(), case).status == "diverged"
    verdict = check(numerics.DeclaresWhatItRounds(), case)
    assert (verdict.status, verdict.dtype) == ("agreed", "bfloat16")
    other = lost_precision(numerics.RoundsMoreThanItDeclares(), case, torch.float32)
    assert "float32 to float8_e5m2" in other


@pytest.mark.parametrize("dtype", [None, "float64"])
def test_a_declared_rounding_hides_no_other_fault(dtype):
    """A wrong slot still shows, in float64 and in float32."""
    options = Options(dtype=dtype)
    assert fuzz(numerics.DeclaresWhatItRounds, examples=25, seed=0, options=options).verdict == (
        "agreed"
    )
    assert fuzz(numerics.SlotOffByOne, examples=60, seed=0, options=options).verdict == "diverged"


def test_a_declared_bound_is_what_counts():
    """It is a share of the largest logit, and the subject's promise."""

    class Bounded(numerics.DeclaresWhatItRounds):
        cache_bound = 0.05

    verdict = check(Bounded(), CASE)
    assert (verdict.status, verdict.basis) == ("agreed", "declared")
    Bounded.cache_bound = 1e-6
    assert check(Bounded(), CASE).status == "diverged"


def test_without_a_bound_an_agreement_says_nothing():
    """And what is not finite diverges all the same."""

    class Boundless(numerics.DeclaresWhatItRounds):
        cache_bound = math.inf

    assert check(Boundless(), CASE).status == "weak"

    class Breaks(Boundless):
        def cached(self, tokens, cache):
            logits, cache = super().cached(tokens, cache)
            return logits * math.nan, cache

    assert check(Breaks(), CASE).status == "diverged"


@pytest.mark.parametrize(
    ("attributes", "message"),
    [
        ({"cache_dtype": "int7"}, "cache_dtype should be one of float64, .*, got 'int7'"),
        ({"cache_bound": 0.1}, "cache_bound needs a cache_dtype, too"),
        ({"cache_dtype": "int8", "cache_bound": 7}, "between 0 and 1, or inf .*, got 7"),
    ],
)
def test_a_declaration_that_makes_no_sense_is_refused(attributes, message):
    """The message has the value and the allowed ones."""
    subject = models.Summing()
    vars(subject).update(attributes)
    with pytest.raises(InvalidSubject, match=message):
        check(subject, CASE)


@pytest.mark.parametrize("dtype", ["float64", "float32"])
@pytest.mark.parametrize("name", ["zoo", "zoo:window", "zoo:llama"])
def test_an_ordinary_case_would_notice_a_corrupted_cache(name, dtype):
    """So that its agreement means something."""
    case = Case(CASE.tokens, CASE.schedule, dtype=dtype)
    assert check(load(name).subject(case), case).status == "agreed"


@pytest.mark.parametrize("subject", [numerics.Forgetful, lambda: out_of_reach.opaque(1)])
def test_the_cache_is_corrupted_whatever_it_is(subject):
    """One that no logit depends on is vacuous; the tensor of an opaque subject is found."""
    verdict = check(subject(), CASE)
    assert verdict.status == ("vacuous" if subject is numerics.Forgetful else "agreed")


def test_a_cache_without_numbers_is_corrupted_through_the_first_token():
    """A cache of tokens holds nothing to multiply."""
    assert check(numerics.KeepsTokens(), CASE).status == "agreed"

    class Deaf(numerics.KeepsTokens):
        def uncached(self, tokens):
            return self.table[tokens] @ self.out

    assert check(Deaf(), CASE).status == "vacuous"


def test_a_window_of_one_reads_no_cache():
    """Every query sees itself alone, so the cache could hold anything."""
    case = Case(CASE.tokens, CASE.schedule, dtype="float64", config={"window": 1})
    assert check(load("zoo").subject(case), case).status == "vacuous"


def test_a_hunt_of_vacuous_cases_is_inconclusive(tmp_path, capsys):
    """Exit code 3, counted, with the reason: nothing was shown."""
    hunt = fuzz(numerics.Forgetful, examples=20, seed=0)
    assert (hunt.verdict, hunt.read) == ("inconclusive", 0)
    assert hunt.vacuous > 20
    assert "a corrupted cache would have given the same logits" in hunt_text(hunt)
    name = "tests.subjects.numerics:Forgetful"
    assert main(["fuzz", name, "--examples", "20", "--folder", str(tmp_path)]) == 3
    assert "vacuous" in capsys.readouterr().out


def test_a_hunt_of_weak_cases_is_inconclusive():
    """Where rounding moves every logit by a tenth, logits that differ may agree, but are no
    evidence."""

    class Loud(models.Summing):
        def uncached(self, tokens):
            logits = super().uncached(tokens)
            wobble = torch.arange(logits.shape[1])[None, :, None] % 2 * 0.2 + 0.9
            return logits if logits.dtype == torch.float64 else logits * wobble

        def cached(self, tokens, cache):
            (sums, seen), whole = cache, None
            logits, sums = super().cached(tokens, sums)
            index = torch.arange(seen, seen + tokens.shape[1])
            whole = logits * (index[None, :, None] % 2 * 0.2 + 0.90001)
            return (logits if logits.dtype == torch.float64 else whole), (sums, index[-1] + 1)

        def new_cache(self, batch):
            return super().new_cache(batch), 0

    hunt = fuzz(Loud, examples=20, seed=0, options=Options(dtype="float32"))
    assert (hunt.verdict, hunt.positions) == ("inconclusive", 0)
    assert hunt.weak == hunt.cases
    assert "rounding in float32 moves every logit by too much to tell" in hunt_text(hunt)


def test_the_cache_is_what_it_was_after_it_was_corrupted():
    """A subject may keep its cache and use it again. (Numbers are corrupted where another first
    token, here 2 for 1 and 5 for 4, changes nothing.)"""

    class Holds(models.Summing):
        def __init__(self):
            super().__init__()
            self.table[[2, 5]] = self.table[[1, 4]]

        def cached(self, tokens, cache):
            self.kept = cache
            self.before = cache.clone()
            return super().cached(tokens, cache)

    subject = Holds()
    assert check(subject, CASE, trace=False).status == "agreed"
    assert bool(subject.kept.any())
    expected = Holds()
    run_cached(expected, CASE.up_to_call(3))
    assert torch.equal(subject.kept, expected.kept)
    assert not torch.equal(subject.before, expected.before)


def test_weights_that_a_cache_can_reach_are_not_corrupted():
    """Nor is a tensor that shows one number many times, which cannot be written to."""

    class Knows(models.Summing):
        def new_cache(self, batch):
            return [super().new_cache(batch), self, torch.ones(1).expand(batch, 3)]

        def cached(self, tokens, cache):
            logits, sums = super().cached(tokens, cache[0])
            return logits, [sums, *cache[1:]]

    subject = Knows()
    before = subject.table.clone(), subject.out.clone()
    assert check(subject, CASE).status == "agreed"
    assert torch.equal(subject.table, before[0])
    assert torch.equal(subject.out, before[1])


def test_a_cache_that_the_subject_keeps_is_corrupted_in_the_dtype_that_runs():
    """In float64 it is the float64 copy that has to be touched."""
    hunt = fuzz(numerics.OwnBuffers, examples=40, seed=0)
    assert (hunt.verdict, hunt.vacuous) == ("agreed", 0)


def test_unused_numbers_in_a_cache_do_not_make_it_vacuous():
    """The first token is tried as well."""

    class Decorated(numerics.KeepsTokens):
        def new_cache(self, batch):
            return super().new_cache(batch), torch.ones(batch, 2)

        def cached(self, tokens, cache):
            logits, whole = super().cached(tokens, cache[0])
            return logits, (whole, cache[1])

    assert check(Decorated(), CASE).status == "agreed"


def test_a_hunt_traces_casts_where_code_may_differ(monkeypatch):
    """Not for every case: the tokens do not choose the dtypes."""
    seen = []
    real = lost_precision
    monkeypatch.setattr(
        "kvfuzz.oracle.agreement.lost_precision", lambda *given: seen.append(given) or real(*given)
    )
    hunt = fuzz(models.Summing, examples=50, seed=0, options=Options(dtype="float32"))
    assert hunt.read > 30
    # Two flavours, one dtype, and three kinds of calls.
    assert 2 <= len(seen) <= 6
    del seen[:]
    fuzz(models.Summing, examples=50, seed=0, options=Options(dtype="float64"))
    assert seen == []


def test_a_cast_in_one_setting_is_found_by_a_hunt():
    """Each setting is traced, whatever was traced before."""

    class RoundsSalted(models.Summing):
        def cached(self, tokens, cache):
            logits, cache = super().cached(tokens, cache)
            self.copy = cache.bfloat16() if self.flavour == "salted" else cache
            return logits, cache

    hunt = fuzz(RoundsSalted, examples=50, seed=0, options=Options(dtype="float32"))
    assert "rounds float32 to bfloat16" in hunt.failure.verdict.precision
    assert hunt.failure.case.config["flavour"] == "salted"


def test_an_agreement_that_is_not_vacuous_runs_the_cached_path_once():
    """The uncached path shows that other tokens would have been noticed."""
    calls = []

    class Counts(models.Summing):
        def cached(self, tokens, cache):
            calls.append(tokens.shape[1])
            return super().cached(tokens, cache)

    assert check(Counts(), CASE, trace=False).status == "agreed"
    assert calls == list(CASE.schedule)
