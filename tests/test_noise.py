"""Noise: measured on the uncached path, and nothing stays changed."""

from contextlib import suppress

import pytest
import torch

from kvfuzz.case.case import Case
from kvfuzz.oracle.agreement import check, check_against
from kvfuzz.oracle.noise import DRAWS, Unmeasurable, logits_noise, perturbation, states_noise
from kvfuzz.oracle.reference import find_reference
from kvfuzz.oracle.tolerance import measured
from kvfuzz.report.text import hunt_text
from kvfuzz.search.hunt import fuzz
from kvfuzz.subjects.dtypes import compute_dtype
from kvfuzz.subjects.float64 import Twin
from kvfuzz.subjects.loading import as_factory, load
from kvfuzz.subjects.perturb import perturbing, signs
from kvfuzz.subjects.run import run_uncached
from kvfuzz.subjects.zoo.config import DecoderConfig
from kvfuzz.subjects.zoo.decoder import Decoder
from kvfuzz.subjects.zoo.presets import PRESETS
from tests.subjects import models, numerics, out_of_reach

ROWS = ((1, 5, 9, 2, 8, 3, 3, 7), (6, 2, 2, 9, 1, 4, 10, 0))


def noise_of(subject, dtype, rows=ROWS):
    return logits_noise(subject, rows, run_uncached(subject, rows), dtype)


def test_the_step_of_float64_moves_every_weight():
    """A step of 2^-53 would not: half of those perturbations do nothing."""
    weights = torch.randn(1000, dtype=torch.float64)
    assert torch.equal(weights * (1 + 2**-53), weights)
    size = perturbation(torch.float64)
    assert bool((weights * (1 + size) != weights).all())
    assert bool((weights * (1 - size) != weights).all())


@pytest.mark.parametrize("dtype", ["float64", "float32", "bfloat16"])
@pytest.mark.parametrize("preset", PRESETS)
def test_many_sets_of_weights_at_once_give_the_noise_of_one_after_another(preset, dtype):
    """The built-in decoder's shortcut measures what the general way measures."""
    subject, kind = Decoder(PRESETS[preset], seed=5, dtype=dtype), getattr(torch, dtype)
    uncached = run_uncached(subject, ROWS)
    quick = logits_noise(subject, ROWS, uncached, kind)
    (general,) = states_noise(subject, lambda: [run_uncached(subject, ROWS)], [uncached], kind)
    assert bool((general > 0).all())
    ratio = quick / general
    assert float(ratio.median()) == pytest.approx(1, rel=0.5)
    assert bool((ratio > 1 / 8).all() and (ratio < 8).all())


def test_noise_follows_the_roundoff_of_the_dtype():
    """Float32 is perturbed 2^28 times as much as float64, and so is its answer."""
    noise = {
        d: noise_of(Decoder(seed=1, dtype=d), getattr(torch, d)) for d in ("float64", "float32")
    }
    ratio = noise["float32"] / noise["float64"] * 2.0**-28
    assert float(ratio.median()) == pytest.approx(1, rel=0.5)


def test_an_ill_conditioned_decoder_is_allowed_more():
    """Two features normalise to almost a sign: rounding travels far there, and that is measured."""
    ill = DecoderConfig(heads=1, kv_heads=1, head_dim=2, layers=3, scale=2.0)
    good = DecoderConfig(heads=4, kv_heads=4, head_dim=8, layers=2)

    def worst(config):
        noises = []
        for seed in range(20):
            subject = Decoder(config, seed=seed, dtype="float64")
            scale = run_uncached(subject, ROWS).abs().amax(-1)
            noises.append(float((noise_of(subject, torch.float64) / scale).max()))
        return max(noises)

    assert worst(ill) > 3 * worst(good)


def test_the_same_case_has_the_same_noise():
    """Whatever the global generator holds."""
    subject = Decoder(seed=3)
    torch.manual_seed(1)
    before = noise_of(subject, torch.float32)
    torch.manual_seed(2)
    assert torch.equal(noise_of(subject, torch.float32), before)
    module = models.ModuleBacked()
    torch.manual_seed(1)
    before = noise_of(module, torch.float32)
    torch.manual_seed(2)
    assert torch.equal(noise_of(module, torch.float32), before)


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (out_of_reach.opaque, "it holds no tensors"),
        (out_of_reach.hiding, "it does not compute in float64"),
        (
            lambda: out_of_reach.hiding(dtype=torch.float64),
            "its logits do not depend on the tensors that it holds",
        ),
    ],
)
def test_weights_that_are_not_found_are_said_not_to_be(make, reason):
    """Zero noise would make every difference a divergence."""
    subject = make()
    dtype = run_uncached(subject, ROWS).dtype
    with pytest.raises(Unmeasurable, match=reason):
        noise_of(subject, dtype)


@pytest.mark.parametrize("make", [out_of_reach.opaque, out_of_reach.hiding])
def test_an_opaque_subject_is_judged_by_the_constant_and_the_text_says_so(make):
    """The documented fallback, stated in the verdict and in the hunt's text."""
    case = Case(ROWS, (3, 1, 4))
    verdict = check_against(find_reference(make(), case), make(), case)
    assert (verdict.status, verdict.basis) == ("agreed", "constant")
    hunt = fuzz(make, examples=20, seed=0)
    assert (hunt.verdict, hunt.bases) == ("agreed", ("constant", "least"))
    assert "tolerance: a constant, since the noise of this subject cannot be measured" in hunt_text(
        hunt
    )


@pytest.mark.parametrize(
    "make",
    [models.Summing, models.ModuleBacked, numerics.Preallocated, lambda: Decoder(seed=1)],
)
def test_weights_are_found_wherever_a_subject_keeps_them(make):
    """In `model`, in a module under another name, in plain tensors."""
    assert find_reference(make(), Case(ROWS, (3, 1, 4))).tolerance.basis == "measured"


def test_weights_are_what_they_were_bit_for_bit():
    """After measuring, in every dtype, and after an uncached path that raises half-way."""

    class Raises(numerics.Preallocated):
        calls = 0

        def uncached(self, tokens):
            Raises.calls += 1
            if Raises.calls == 4:
                raise ZeroDivisionError
            return super().uncached(tokens)

    for subject, failing in ((numerics.Preallocated(1), False), (Raises(1), True)):
        before = {n: p.clone() for n, p in subject.net.named_parameters()}
        pointers = {n: p.data_ptr() for n, p in subject.net.named_parameters()}
        try:
            noise_of(subject, torch.float32)
        except Unmeasurable:
            assert failing
        for name, parameter in subject.net.named_parameters():
            assert parameter.dtype == torch.float32
            assert torch.equal(parameter, before[name])
            assert parameter.data_ptr() == pointers[name]
        assert torch.get_default_dtype() == torch.float32


def test_a_perturbation_is_undone_exactly_also_by_an_exception():
    """Multiplying back would not do."""
    weights = [torch.randn(50, dtype=torch.float64) for _ in range(2)]
    before = [weight.clone() for weight in weights]
    moved = []
    with suppress(ZeroDivisionError), perturbing(weights) as perturb:
        perturb(2**-24, 0)
        moved += [weight.clone() for weight in weights]
        raise ZeroDivisionError
    assert not any(torch.equal(w, b) for w, b in zip(moved, before, strict=True))
    assert all(torch.equal(w, b) for w, b in zip(weights, before, strict=True))


def test_views_that_a_subject_keeps_of_its_weights_follow_them():
    """In place, so that what is perturbed is what is computed with."""

    class Viewing(models.Summing):
        def __init__(self):
            super().__init__()
            self.table, self.out = self.table.double(), self.out.double()
            whole = torch.cat((self.table.flatten(), self.out.flatten()))
            self.whole = whole
            self.table, self.out = whole[:88].view(11, 8), whole[88:].view(8, 11)

    assert float(noise_of(Viewing(), torch.float64).min()) > 0


def test_an_island_of_a_coarser_dtype_in_both_paths_is_no_accusation():
    """Its rounding is the noise, also where a perturbation of float32 vanishes in it."""
    hunt = fuzz(numerics.InHalfInside, examples=100, seed=0)
    assert hunt.verdict == "agreed"

    class Wrong(numerics.InHalfInside):
        def cached(self, tokens, cache):
            logits, cache = super().cached(tokens, cache)
            return logits * (1.1 if tokens.shape[1] == 1 else 1), cache

    assert fuzz(Wrong, examples=100, seed=0).verdict == "diverged"


def test_a_path_that_cannot_be_watched_is_judged_all_the_same():
    """A compiled model may refuse to run while its operations are watched. That is no excuse."""

    class Shy(models.ForgetsOnDecode):
        def uncached(self, tokens):
            if torch.utils._python_dispatch._get_current_dispatch_mode() is not None:
                raise RuntimeError("not while I am watched")
            return super().uncached(tokens)

    assert check(Shy(), Case(ROWS, (3, 1, 4))).status == "diverged"
    assert fuzz(Shy, examples=20, seed=0).verdict == "diverged"


def test_a_cast_that_no_logit_passes_through_excuses_no_fault_in_float64():
    """It is no island, so the subject runs in float64, where the fault shows."""

    class Wrong(numerics.RoundsInBoth):
        def cached(self, tokens, cache):
            logits, cache = super().cached(tokens, cache)
            return logits * (1 + 1e-6), cache

    hunt = fuzz(Wrong, examples=60, seed=0)
    assert (hunt.verdict, hunt.failure.case.dtype) == ("diverged", "float64")


def test_dropout_that_is_left_on_is_no_rounding():
    """The uncached path runs with the random numbers it had, so that it does not excuse itself."""
    verdict = check(models.DropsOut(), Case(ROWS, (3, 1, 4)))
    assert verdict.status == "diverged"


def test_a_transformers_model_is_measured_in_both_lanes():
    """And holds its own weights afterwards."""
    pytest.importorskip("transformers")
    factory = load("transformers:llama")
    for dtype in ("float32", "float64"):
        case = Case(ROWS, (3, 1, 4), seed=4, dtype=dtype, config=factory.first_config())
        subject = factory.subject(case)
        before = [p.clone() for p in subject.model.parameters()]
        verdict = check_against(find_reference(subject, case), subject, case)
        assert (verdict.status, verdict.basis) == ("agreed", "measured")
        after = list(subject.model.parameters())
        assert all(torch.equal(a, b) for a, b in zip(after, before, strict=True))


def test_experts_that_have_no_float64_kernel_are_measured_one_by_one():
    """And run as they did before afterwards."""
    pytest.importorskip("transformers")
    factory = load("transformers:mixtral")
    config = {**factory.first_config()}
    subject = factory.build(0, "float32", config)
    before = getattr(subject.model.config, "_experts_implementation", None)
    case = Case(ROWS, (3, 1, 4), config=config)
    assert find_reference(subject, case).tolerance.basis == "measured"
    assert getattr(subject.model.config, "_experts_implementation", None) == before


@pytest.mark.parametrize("value", [float("inf"), float("nan")])
def test_a_perturbation_that_overflows_is_infinite_noise_at_its_position_alone(value):
    """A position that cannot be measured is weak, and loosens no other."""
    uncached = run_uncached(Decoder(dtype="float64"), ROWS)

    class Overflows(Decoder):
        def perturbed(self, tokens, size, draws):
            logits = super().perturbed(tokens, size, draws)
            logits[1, 0, 3, 2] = value
            return logits

    noise = logits_noise(Overflows(dtype="float64"), ROWS, uncached, torch.float64)
    assert noise.isinf().nonzero().tolist() == [[0, 3]]
    tolerance = measured(uncached, noise, torch.float64)
    assert tolerance.weak.nonzero().tolist() == [[0, 3]]
    assert float(tolerance.allowed[1].max()) < 1e-10


def test_equal_infinities_are_no_noise():
    """A vocabulary that is masked with -inf is so in every run."""
    uncached = run_uncached(Decoder(dtype="float64"), ROWS)
    uncached[..., 5] = -torch.inf

    class Masks(Decoder):
        def perturbed(self, tokens, size, draws):
            logits = super().perturbed(tokens, size, draws)
            logits[..., 5] = -torch.inf
            return logits

    noise = logits_noise(Masks(dtype="float64"), ROWS, uncached, torch.float64)
    assert bool((noise.isfinite() & (noise > 0)).all())


def test_the_twin_of_a_model_in_another_dtype_has_its_rounded_weights():
    """The same numbers, so that only the arithmetic differs."""
    subject = as_factory(numerics.InHalf).build(0, "bfloat16", {})
    rounded = subject.net.token.detach().clone()
    twin = Twin(subject)
    with twin.running():
        assert subject.net.token.dtype == torch.float64
        assert torch.equal(subject.net.token.detach(), rounded.double())
    assert subject.net.token.dtype == torch.bfloat16


def test_every_draw_moves_the_weights_another_way():
    """Four samples of the condition number, not one four times."""
    draws = [signs(1000, draw) for draw in range(DRAWS)]
    assert DRAWS == 4
    for number, one in enumerate(draws):
        assert set(one.tolist()) == {-1.0, 1.0}
        for other in draws[:number]:
            assert 400 < int((one == other).sum()) < 600


@pytest.mark.parametrize("known", [False, True])
def test_a_large_weight_is_perturbed_in_pieces_by_the_same_signs(monkeypatch, known):
    """And restored bit for bit, from the numbers that are known or from a copy, which is float32
    only if that loses nothing."""
    values = [torch.randn(50, 40), torch.randn(30), torch.randn(40, 50).T]
    weights = [value.double() for value in values]
    fine = torch.randn(60, 40, dtype=torch.float64)
    weights, before = [*weights, fine], [*(w.clone() for w in weights), fine.clone()]
    row = signs(sum(weight.numel() for weight in weights), 3)
    monkeypatch.setattr("kvfuzz.subjects.perturb._PIECE", 1000)
    monkeypatch.setattr("kvfuzz.subjects.perturb._MOST_KEPT", 1000)
    with perturbing(weights, [*values, fine] if known else None) as perturb:
        perturb(2**-24, 3)
        for weight, value in zip(weights, before, strict=True):
            sign, row = row[: weight.numel()].view(weight.shape), row[weight.numel() :]
            assert torch.equal(weight, torch.addcmul(value, value, sign, value=2**-24))
    assert all(torch.equal(w, b) for w, b in zip(weights, before, strict=True))


def test_the_twin_is_not_kept_after_the_noise_was_measured():
    """A subject that lives on would hold its weights twice."""
    subject = numerics.Preallocated()
    subject.twin = Twin(subject)
    logits_noise(subject, ROWS, run_uncached(subject, ROWS), torch.float32)
    assert subject.twin._doubles is None


def test_more_draws_never_lower_the_noise(monkeypatch):
    """The largest of them counts."""
    subject = Decoder(seed=2, dtype="float64")
    four = noise_of(subject, torch.float64)
    monkeypatch.setattr("kvfuzz.oracle.noise.DRAWS", 1)
    one = noise_of(subject, torch.float64)
    assert bool((one <= four).all())
    assert bool((one < four).any())


def test_what_stands_for_infinity_is_not_perturbed():
    """A mask of the smallest number would overflow to one of infinity, and a hidden key count."""
    least = torch.finfo(torch.float64).min
    weights = [torch.tensor([least] * 3, dtype=torch.float64), torch.ones(3).double()]
    with perturbing(weights) as perturb:
        perturb(2**-52, 0)
        assert weights[0].tolist() == [least] * 3
        assert weights[1].tolist() != [1.0] * 3


def test_an_outlier_is_no_noise():
    """The rounding of -1e9 over a masked entry is not that of the others."""

    class Masks(models.Summing):
        def uncached(self, tokens):
            logits = super().uncached(tokens)
            return torch.cat((logits[..., :10], logits[..., 10:] - 1e9), -1)

    plain = noise_of(models.Summing(), torch.float32)
    assert bool((noise_of(Masks(), torch.float32) < 10 * plain).all())


def test_buffers_and_tables_are_float64_in_the_twin():
    """Real and complex ones, inside modules and outside."""
    subject = numerics.Preallocated()
    subject.net.register_buffer("rotary", torch.ones(2, dtype=torch.complex64))
    subject.table = torch.ones(2)
    twin = Twin(subject)
    with twin.running():
        assert subject.net.rotary.dtype == torch.complex128
        assert subject.table.dtype == torch.float64
    assert (subject.net.rotary.dtype, subject.table.dtype) == (torch.complex64, torch.float32)


def test_equal_neighbours_do_not_cancel_their_noise():
    """A model that subtracts neighbours has zero logits for equal tokens, but still rounds."""

    class Shifts(numerics.Preallocated):
        def __init__(self):
            super().__init__()
            self.embedding = torch.nn.Embedding.from_pretrained(self.net.token.detach())

        def uncached(self, tokens):
            x = self.embedding(tokens) @ self.net.query
            before = torch.nn.functional.pad(x, (0, 0, 1, 0))[:, :-1]
            return torch.nn.functional.layer_norm(x - before, (16,)) @ self.net.token.T

    noise = noise_of(Shifts(), torch.float32, ((3, 3, 3, 3),))
    assert bool((noise[:, 1:] > 1e-8).all())


def test_a_backbone_and_the_head_next_to_it_are_both_perturbed():
    """`model` may be the backbone alone."""

    class Head(numerics.Preallocated):
        def __init__(self, seed=0):
            super().__init__(seed)
            self.model = torch.nn.Linear(3, 3)

    subject = Head()
    found = {id(weight) for weight in Twin(subject).weights}
    assert {id(parameter) for parameter in subject.net.parameters()} <= found


def test_one_stray_parameter_does_not_choose_the_dtype():
    """The dtype that most parameters have does."""
    subject = numerics.Preallocated()
    subject.model = subject.net
    subject.net.stray = torch.nn.Parameter(torch.ones(2, dtype=torch.bfloat16))
    assert compute_dtype(torch.float32, subject) == torch.float32
    assert compute_dtype(torch.float32, numerics.InHalf()) == torch.bfloat16
