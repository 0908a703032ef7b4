"""Without the float64 twin a hunt never runs in float64, says so, and sees what rounding shows."""

import json
from dataclasses import replace
from functools import partial

import pytest
import torch

from kvfuzz import Options, fuzz
from kvfuzz.case.case import Case
from kvfuzz.errors import UsageError
from kvfuzz.oracle.reference import find_reference
from kvfuzz.report.text import hunt_text
from kvfuzz.search.replay import replay
from kvfuzz.subjects import float64
from kvfuzz.subjects.dtypes import ROUNDOFF
from kvfuzz.subjects.float64 import Twin, TwinlessSubject
from kvfuzz.subjects.loading import as_factory
from kvfuzz.subjects.perturb import perturbing
from tests.subjects import models

TWINLESS = Options(twin=False)
FORGETS = "tests.subjects.models:ForgetsOnDecode"
hunt = partial(fuzz, examples=40, seed=0)


class InFloat32(models.Summing):
    """Raises where anything is float64."""

    def uncached(self, tokens):
        assert (self.table.dtype, torch.get_default_dtype()) == (torch.float32, torch.float32)
        return super().uncached(tokens)

    def cached(self, tokens, cache):
        assert (self.table.dtype, torch.get_default_dtype()) == (torch.float32, torch.float32)
        return super().cached(tokens, cache)


class TooLargeByAMillionth(models.Summing):
    """On decode: within the rounding of float32, and far from that of float64."""

    def cached(self, tokens, cache):
        logits, cache = super().cached(tokens, cache)
        return logits * (1 + 1e-7 * (tokens.shape[1] == 1)), cache


def test_it_agrees_and_says_what_it_could_not_see():
    found = hunt(InFloat32, options=TWINLESS)
    assert (found.verdict, found.bases) == ("agreed", ("own dtype", "least"))
    text = hunt_text(found)
    assert "without the float64 twin" in text
    assert "a fault smaller than its rounding is not seen" in text
    assert "without the float64 twin" not in hunt_text(hunt(models.Summing))


def test_a_fault_is_found_and_replayed_without_the_twin(tmp_path, monkeypatch):
    """The file remembers it, so that a replay needs no more memory."""
    found = hunt(FORGETS, options=TWINLESS, folder=tmp_path)
    assert (found.verdict, found.failure.verdict.basis) == ("diverged", "own dtype")
    assert json.loads(found.path.read_text())["twin"] is False
    monkeypatch.setattr(Twin, "running", None)
    again = replay(found.path)
    assert (again.verdict.status, again.verdict.basis) == ("diverged", "own dtype")


def test_what_it_cannot_see_is_a_fault_below_the_rounding():
    assert hunt(TooLargeByAMillionth, options=TWINLESS).verdict == "agreed"
    assert hunt(TooLargeByAMillionth).verdict == "diverged"


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
def test_a_weight_moves_by_its_last_digit_and_back(dtype):
    """A perturbation that rounds to nothing would measure no noise."""
    weight = torch.randn(500).to(dtype)
    before = weight.clone()
    with perturbing([weight]) as perturb:
        perturb(ROUNDOFF[dtype], 0)
        assert weight.dtype == dtype
        assert float((weight != before).double().mean()) > 0.9
        assert torch.allclose(weight, before, rtol=3 * ROUNDOFF[dtype], atol=0)
    assert torch.equal(weight, before)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_its_noise_is_that_of_the_twin_or_a_little_more(dtype):
    """It adds the rounding of two runs. Less than that of the twin could be a false alarm."""

    class Model(models.Summing):
        def __init__(self, seed=0):
            super().__init__(seed)
            self.model = torch.nn.Linear(8, 11, bias=False).to(getattr(torch, dtype))
            self.table = self.table.to(getattr(torch, dtype))

        def uncached(self, tokens):
            return self.model(self.table[tokens].cumsum(1))

        def cached(self, tokens, cache):
            states = cache[:, None].to(self.table.dtype) + self.table[tokens].cumsum(1)
            return self.model(states), states[:, -1]

    case = Case(((1, 2, 3, 4), (4, 0, 1, 7)), (2, 1, 1), dtype=dtype)
    subject = Model()
    twin, own = (find_reference(one, case).tolerance for one in (subject, TwinlessSubject(subject)))
    assert (twin.basis, own.basis) == ("measured", "own dtype")
    ratio = own.allowed / twin.allowed
    assert float(ratio.min()) > 0.5
    assert float(ratio.max()) < 4


def test_a_twin_that_does_not_fit_is_refused_in_one_line(monkeypatch):
    """The system would kill the process."""
    monkeypatch.setattr(float64, "LARGE", 1)
    monkeypatch.setattr(float64, "free_bytes", lambda: 1000)
    with pytest.raises(UsageError, match=r"needs 0.0 GB of memory and 0.0 GB are free: --no-twin"):
        hunt(models.Summing)
    assert hunt(models.Summing, options=TWINLESS).verdict == "agreed"


def test_float64_needs_the_twin():
    with pytest.raises(UsageError, match="dtype float64 needs the float64 twin"):
        replace(TWINLESS, dtype="float64")
    assert as_factory(models.Summing, options=TWINLESS).dtypes == ("float32",)


def test_the_command_takes_it(run, tmp_path):
    code, out, _ = run(
        *("fuzz", "transformers:llama", "--no-twin", "--dtype", "bfloat16"),
        *("--examples", "3", "--seed", "0", "--folder", tmp_path),
    )
    assert code in (0, 3)
    assert "without the float64 twin" in out
