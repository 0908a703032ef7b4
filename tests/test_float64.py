"""Float64: float32 islands are promoted, subjects run in their twins, and nothing stays changed."""

from contextlib import suppress

import pytest
import torch
from torch.nn.functional import softmax

from kvfuzz.case.case import Case
from kvfuzz.oracle.agreement import check, check_against
from kvfuzz.oracle.reference import find_reference
from kvfuzz.search.hunt import fuzz
from kvfuzz.search.judge import judge
from kvfuzz.subjects.float64 import Float64Subject, Twin, promoted
from kvfuzz.subjects.loading import Options, as_factory
from kvfuzz.subjects.protocol import Factory
from kvfuzz.subjects.run import run_cached, run_uncached
from tests.subjects import models, numerics, out_of_reach

CASE = Case(((1, 5, 9, 2, 8, 3),), (2, 1, 1, 2), dtype="float64")
NUMERICS = "tests.subjects.numerics"


def third() -> torch.Tensor:
    return torch.ones(3, dtype=torch.float64) / 3


@pytest.mark.parametrize(
    "island",
    [
        lambda x: x.float(),
        lambda x: x.to(torch.float32),
        lambda x: x.to(dtype=torch.float),
        lambda x: x.type(torch.float32),
        lambda x: softmax(x, dim=-1, dtype=torch.float32),
        lambda x: x.new_zeros(2, dtype=torch.float32),
        lambda x: x.sum(dtype=torch.float32),
        lambda x: torch.arange(len(x), dtype=torch.float32),
    ],
)
def test_a_float32_island_runs_in_float64(island):
    """However a model asks for float32, it gets float64 inside, and only there."""
    assert island(third()).dtype == torch.float32
    with promoted():
        assert island(third()).dtype == torch.float64


def test_the_digits_survive():
    """A value that passes through an island keeps all its digits."""
    assert not torch.equal(third().float().double(), third())
    with promoted():
        assert torch.equal(third().float(), third())


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_is_left_alone(dtype):
    """A cache that rounds to half precision is a fault, so it still rounds inside."""
    with promoted():
        assert third().to(dtype).dtype == dtype
        assert not torch.equal(third().to(dtype).double(), third())


def test_new_tensors_are_float64():
    """A tensor made without a dtype is float64 inside, and float32 again after."""
    with promoted():
        assert torch.zeros(1).dtype == torch.float64
        assert torch.tensor(0.1).item() == 0.1
    assert torch.zeros(1).dtype == torch.float32


def test_nothing_stays_behind_when_the_model_raises():
    """After an exception, float32 means float32 and is the default again."""
    with pytest.raises(ZeroDivisionError), promoted():
        raise ZeroDivisionError
    assert torch.get_default_dtype() == torch.float32
    assert third().float().dtype == torch.float32


def test_the_callers_own_default_dtype_comes_back():
    """A default dtype that the caller had set is the one that is restored."""
    torch.set_default_dtype(torch.bfloat16)
    try:
        with promoted(), promoted():
            assert torch.get_default_dtype() == torch.float64
        assert torch.get_default_dtype() == torch.bfloat16
    finally:
        torch.set_default_dtype(torch.float32)


def test_a_subject_is_offered_in_its_own_dtype_and_in_float64():
    """A subject whose weights are found also runs in float64, with no code for it."""
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
    """In neither dtype."""
    hunt = fuzz(numerics.Preallocated, examples=30, seed=0)
    assert (hunt.verdict, hunt.bases) == ("agreed", ("measured", "least"))
    assert hunt.worst_excess <= 0.5


def test_a_cache_that_rounds_to_bfloat16_is_caught_inside():
    """Only float32 is promoted; promoting bfloat16 would hide this."""
    subject = as_factory(numerics.RoundsTo).build(0, "float64", {})
    assert check(subject, CASE).excess > 1e6


@pytest.mark.parametrize("make", [numerics.InHalf, numerics.InHalfByName])
def test_what_a_bfloat16_model_makes_bfloat16_is_no_loss(make):
    """A cast to the model's own dtype rounds nothing there, so it counts as none in float64; a
    float16 cache is a fault in both."""
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


def test_float64_works_in_every_worker():
    """Two processes find what one finds."""
    options = Options(dtype="float64")
    one, two = (
        fuzz(f"{NUMERICS}:RoundsTo", examples=100, seed=2, workers=n, options=options)
        for n in (1, 2)
    )
    assert one.failure.case.dtype == "float64"
    assert one.failure == two.failure


def test_a_factory_that_takes_a_dtype_is_built_in_float64():
    """It draws its weights in float64 itself, and needs no twin."""
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


def test_float64_that_is_asked_for_is_the_float64_that_is_drawn():
    """A counterexample found with `--dtype float64` replays without it, and the other way
    round."""
    drawn = as_factory(numerics.Preallocated).build(3, "float64", {})
    asked = as_factory(numerics.Preallocated, options=Options(dtype="float64")).build(
        3, "float64", {}
    )
    assert torch.equal(run_uncached(drawn, CASE.tokens), run_uncached(asked, CASE.tokens))


def test_what_is_written_while_the_twin_runs_stays_with_the_twin():
    """A table made on first use is float64 there, and float32 where the subject makes its own."""
    subject = out_of_reach.LazyTable()
    case = Case(CASE.tokens, CASE.schedule)
    assert check(subject, case).status == "agreed"
    assert subject.net.scales.dtype == subject.net.again.dtype == torch.float32
    hunt = fuzz(subject, examples=30, seed=0)
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
    """One without `__dict__`, or one with attributes named like ours."""
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
    """Its rounding would look like a fault there; in its own dtype it agrees."""
    factory = as_factory(make)
    assert "float64" not in factory.dtypes
    assert fuzz(factory, examples=40, seed=0).verdict == "agreed"


def test_raising_in_float64_alone_is_no_divergence():
    """A subject that refuses float64 is discarded there, and judged in its own dtype."""

    class Asserts(numerics.Preallocated):
        def cached(self, tokens, cache):
            assert cache[0] < 4 or cache[1].dtype == torch.float32
            return super().cached(tokens, cache)

    hunt = fuzz(Asserts, examples=30, seed=0)
    assert hunt.verdict == "agreed"
    assert hunt.reasons[0].startswith("not in float64: the cached path raised AssertionError")


def test_a_subject_that_keeps_its_cache_agrees_in_both_dtypes():
    """A buffer that one dtype allocates on first use is never seen by the other."""
    shared = out_of_reach.AllocatesOnFirstUse()
    hunt = fuzz(shared, examples=30, seed=0)
    assert (hunt.verdict, hunt.discarded) == ("agreed", 0)


def test_attributes_that_the_twin_adds_to_an_empty_object_are_removed():
    """A subject whose weights belong to its class has no attributes at first."""

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


class RoundsLongRows(models.Summing):
    """Both paths pass through float32, if a call has several tokens. The cached path is wrong by
    less than that rounds."""

    def __init__(self):
        super().__init__()
        self.table = self.table.double() / 3  # no sum of two lies half-way between float32 numbers

    def uncached(self, tokens):
        return self._rounded(self.table[tokens].cumsum(1), tokens) @ self.out

    def cached(self, tokens, cache):
        sums = cache[:, None] * (1 + 1e-10) + self.table[tokens].cumsum(1)
        return self._rounded(sums, tokens) @ self.out, sums[:, -1]

    def _rounded(self, x, tokens):
        return x.float().to(x.dtype) if tokens.shape[1] > 1 else x


def test_an_island_that_a_short_row_does_not_show_hides_no_fault():
    """A twin stays in float64 for a whole case if it asks for no float32. One that asks only in
    longer rows is noticed in its first uncached call, and judged again with every call promoted."""
    case = Case(CASE.tokens, (2, 2, 2), dtype="float64")
    subject = Float64Subject(RoundsLongRows())
    with subject.twin.running(promoting=False):
        subject.twin.stays = subject._watched = True
        assert check_against(find_reference(subject, case, noise=False), subject, case).excess < 1
    subject.twin.stays = False
    assert judge(subject, case).verdict.diverged
    assert subject.twin.promotes


def test_a_twin_that_stays_gives_the_subject_back():
    """Its weights are what they were, also after an error."""
    subject = models.Summing()
    before, wide = subject.table.clone(), Float64Subject(subject)
    with suppress(ZeroDivisionError), wide.staying():
        assert subject.table.dtype == torch.float64
        raise ZeroDivisionError
    assert torch.equal(subject.table, before)
    assert wide.uncached(torch.tensor([[1]])).dtype == torch.float64


class KeepsATable(models.Summing):
    """The cached path keeps a table that it makes through float32; the other makes it anew."""

    kept = None

    def uncached(self, tokens):
        return (self.table / 3).float().to(self.table.dtype)[tokens].cumsum(1) @ self.out

    def cached(self, tokens, cache):
        if self.kept is None:
            self.kept = (self.table / 3).float().to(self.table.dtype)
        sums = cache[:, None] + self.kept[tokens].cumsum(1)
        return sums @ self.out, sums[:, -1]


class MixesDtypes(models.Summing):
    """A short call multiplies float32 by the dtype of the weights, which only promotion allows. The
    cached path is wrong by less than float32 rounds."""

    def __init__(self, error):
        super().__init__()
        self.error = error

    def uncached(self, tokens):
        return self._product(self.table[tokens].cumsum(1))

    def cached(self, tokens, cache):
        sums = cache[:, None] * (1 + self.error) + self.table[tokens].cumsum(1)
        return self._product(sums), sums[:, -1]

    def _product(self, sums):
        return (sums.float() if sums.shape[1] < 3 else sums) @ self.out


def test_what_a_twin_that_stays_kept_is_forgotten():
    """It was made without promotion, and would be used in the runs that promote."""
    case = Case(CASE.tokens, CASE.schedule, dtype="float64")
    assert judge(Float64Subject(KeepsATable()), case, "repeatability").verdict.status == "agreed"


@pytest.mark.parametrize(("error", "status"), [(0.0, "agreed"), (1e-9, "diverged")])
def test_an_error_in_a_twin_that_stays_decides_nothing(error, status):
    """The case is judged again with every call promoted."""
    case = Case(CASE.tokens, CASE.schedule, dtype="float64")
    assert judge(Float64Subject(MixesDtypes(error)), case).verdict.status == status
