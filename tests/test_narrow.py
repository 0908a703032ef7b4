"""Some cases of every hunt run as a user would: in bfloat16 and float16, with nothing promoted."""

import pytest
import torch

from kvfuzz.report.text import hunt_text
from kvfuzz.search.hunt import fuzz
from kvfuzz.search.replay import replay
from kvfuzz.subjects.loading import Options, as_factory
from tests.subjects import derived, models, narrow, numerics

NAME = "tests.subjects.narrow:"


def test_a_right_decoder_agrees_in_both():
    """And the outcome says how many cases ran in each."""
    hunt = fuzz(narrow.Moved, examples=100, seed=0)
    assert (hunt.verdict, hunt.narrow) == ("agreed", {"bfloat16": 2, "float16": 2})
    assert "  as users run it, nothing promoted: bfloat16 2, float16 2" in hunt_text(hunt)
    assert hunt.to_json()["as_users_run_it"] == {"bfloat16": 2, "float16": 2}


@pytest.mark.parametrize("make", [narrow.WithoutADtype, narrow.Itself, narrow.TakesADtype])
def test_a_cache_without_a_dtype_is_found(make):
    """In float32 it fits, and in float64 the default dtype follows; a user's model raises."""
    hunt = fuzz(make, examples=50, seed=0, locate=False)
    assert (hunt.verdict, hunt.failure.case.dtype) == ("diverged", "bfloat16")
    assert "the cached path raised in bfloat16 RuntimeError: " in hunt_text(hunt)


def test_a_cache_that_widens_what_is_computed_is_found():
    """Nothing raises, and the logits agree: but they are float32."""
    hunt = fuzz(narrow.Widens, examples=50, seed=0, locate=False)
    told = (
        "DIVERGED in precision: the cached path answers in float32, the uncached path in bfloat16"
    )
    assert told in hunt_text(hunt)


def test_a_fault_of_the_dtype_is_found_by_its_logits():
    """By the noise of that dtype."""
    hunt = fuzz(narrow.WrongInHalf, examples=50, seed=0, locate=False)
    assert (hunt.verdict, hunt.failure.case.dtype) == ("diverged", "bfloat16")
    assert hunt.failure.verdict.first is not None


def test_what_other_weights_do_not_show_is_no_fault_of_the_dtype():
    """A choice that rounding decides turns for some weights; nothing is concluded."""
    hunt = fuzz(narrow.Chooses, examples=100, seed=0)
    assert hunt.verdict == "agreed"


def test_a_counterexample_in_a_narrow_dtype_replays(tmp_path):
    """As it was found, with nothing promoted."""
    hunt = fuzz(f"{NAME}WithoutADtype", examples=50, seed=0, folder=tmp_path)
    assert replay(hunt.path).verdict.error == hunt.failure.verdict.error


def test_two_workers_find_what_one_finds():
    """In the same dtype."""
    one, two = (fuzz(f"{NAME}Widens", examples=60, seed=1, workers=n, locate=False) for n in (1, 2))
    assert one.failure == two.failure


@pytest.mark.parametrize(
    ("make", "note"),
    [
        (narrow.LacksAKernel, "note: not run in float16: the uncached path raised RuntimeError"),
        (narrow.LacksAKernelForLongRows, "not judged in float16: both paths raised (RuntimeError"),
        (narrow.KeepsATable, "note: not run in bfloat16 or float16: it keeps tensors that stay"),
        (derived.Leaky, "note: not run in bfloat16 or float16: it keeps tensors that stay"),
    ],
)
def test_what_cannot_run_there_is_skipped_and_said(make, note):
    """A kernel that both paths lack is no fault of the cache."""
    hunt = fuzz(make, examples=60, seed=0)
    assert (hunt.verdict, "float16" in hunt.narrow) == ("agreed", False)
    assert note in hunt_text(hunt)


@pytest.mark.parametrize(
    ("make", "options"),
    [
        (models.Summing, Options()),  # no module to move
        (numerics.InHalf, Options()),  # runs in bfloat16 already
        (narrow.Moved, Options(dtype="float32")),
        (narrow.Moved, Options(twin=False)),
    ],
)
def test_nothing_runs_there_where_no_user_would(make, options):
    """And nothing is said."""
    factory = as_factory(make, options=options)
    assert (factory.narrow, list(factory.remarks)) == ((), [])


def test_an_object_is_copied_and_stays_as_it_is():
    """It is the user's own: its weights are float32, bit for bit, and its hunt finds the fault."""
    subject = narrow.WithoutADtype()
    before = {name: value.clone() for name, value in subject.model.state_dict().items()}
    hunt = fuzz(subject, examples=50, seed=0, locate=False)
    assert hunt.failure.case.dtype == "bfloat16"
    for name, value in subject.model.state_dict().items():
        assert value.dtype == torch.float32
        assert torch.equal(value, before[name])
