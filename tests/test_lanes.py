"""The promotion of float32 islands, and that nothing of it stays behind."""

from __future__ import annotations

import pytest
import torch
from torch.nn.functional import softmax

from kvfuzz.subjects.float64 import promoted


def _third() -> torch.Tensor:
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
    """Whatever way a model has of asking for float32, it gets float64 inside and only there."""
    assert island(_third()).dtype == torch.float32
    with promoted():
        assert island(_third()).dtype == torch.float64


def test_the_digits_survive():
    """A value that passes through an island keeps all its digits."""
    assert not torch.equal(_third().float().double(), _third())
    with promoted():
        assert torch.equal(_third().float(), _third())


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_is_left_alone(dtype):
    """A cache that rounds to half precision is a fault, so it still rounds inside."""
    with promoted():
        assert _third().to(dtype).dtype == dtype
        assert not torch.equal(_third().to(dtype).double(), _third())


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
    assert _third().float().dtype == torch.float32


def test_the_callers_own_default_dtype_comes_back():
    """A default dtype that the caller had set is the one that is restored."""
    torch.set_default_dtype(torch.bfloat16)
    try:
        with promoted(), promoted():
            assert torch.get_default_dtype() == torch.float64
        assert torch.get_default_dtype() == torch.bfloat16
    finally:
        torch.set_default_dtype(torch.float32)
