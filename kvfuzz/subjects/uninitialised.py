"""Fills the memory that `torch.empty` and its like give, so that reading it before a write shows.

What `torch.empty` holds is whatever was in memory: often zeros, sometimes large numbers. Code that
reads it is right or wrong by chance, and one verdict on it proves nothing.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

import torch
from torch import Tensor

_PLACES = (
    (torch, ("empty", "empty_like", "empty_strided", "empty_permuted")),
    (Tensor, ("new_empty", "new_empty_strided")),
)
ALLOCATING = frozenset(name for _, names in _PLACES for name in names)
"""The functions that give memory which nothing has been written to."""


@contextmanager
def filling_uninitialised() -> Iterator[None]:
    """Inside the context the tensors of `torch.empty`, `empty_like`, `empty_strided`, `new_empty`
    and the like hold NaN; True if they are of bools, and the largest number if of whole numbers.

    As with `torch.utils.deterministic.fill_uninitialized_memory`, which would need deterministic
    algorithms everywhere. Calls from C++ and compiled kernels are not seen.
    """
    inherited = [(owner, name) for owner, names in _PLACES for name in names]
    before = {(owner, name): vars(owner).get(name) for owner, name in inherited}
    try:
        for owner, name in inherited:
            if (real := getattr(owner, name, None)) is not None:
                setattr(owner, name, _filled(real))
        yield
    finally:
        for (owner, name), real in before.items():
            if real is not None:
                setattr(owner, name, real)
            elif name in vars(owner):
                delattr(owner, name)  # Tensor inherits its methods


def _filled(make: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(make)
    def made(*args: Any, **kwargs: Any) -> Any:
        found = make(*args, **kwargs)
        if isinstance(found, Tensor) and found.numel():
            # Hidden from the modes that watch the subject, to which it would be a write.
            with torch._C.DisableTorchFunction(), torch.no_grad(), suppress(RuntimeError):
                found.fill_(_value_for(found.dtype))
        return found

    return made


def _value_for(dtype: torch.dtype) -> float | int | bool:
    if dtype.is_floating_point or dtype.is_complex:
        return math.nan
    return True if dtype == torch.bool else torch.iinfo(dtype).max
