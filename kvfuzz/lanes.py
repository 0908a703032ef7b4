"""The float64 lane: places in a model that are hard-coded to float32 run in float64 too."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode


@contextmanager
def promoted() -> Iterator[None]:
    """Inside, whatever asks torch for float32 gets float64, and float64 is the default dtype.

    A model in float64 often keeps islands such as `softmax(..., dtype=torch.float32)` or
    `x.float()`: they round to 1e-7, which hides small faults and looks like one. Requests for
    float16 or bfloat16 are left alone, because a cache that rounds to them is a fault to find.
    Everything is as it was when the block ends, also by an exception.
    """
    default = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        with _Promotion():
            yield
    finally:
        torch.set_default_dtype(default)


class _Promotion(TorchFunctionMode):
    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        if func is Tensor.float:
            func = Tensor.double
        args = tuple(_wider(value) for value in args)
        return func(*args, **{name: _wider(value) for name, value in (kwargs or {}).items()})


def _wider(value: Any) -> Any:
    return torch.float64 if value is torch.float32 else value
