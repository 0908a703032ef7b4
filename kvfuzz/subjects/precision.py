"""Watches the casts to a lower precision among the operations of a run: finds or moves them."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from kvfuzz.subjects.dtypes import ROUNDOFF

# Larger numbers stand for infinity in a mask: they round to other numbers that mean the same.
_MOST = 1e30


def record_casts(action: Callable[[], object]) -> dict[tuple[torch.dtype, torch.dtype], str]:
    """Runs `action`; returns the casts in it that lost precision, as {(from, to): operation}."""
    found: dict[tuple[torch.dtype, torch.dtype], str] = {}

    def note(source: Tensor, given: Tensor, operation: str) -> None:
        if _changed(source, given):
            found.setdefault((source.dtype, given.dtype), operation)

    _watch_casts(action, note)
    return found


def move_casts(action: Callable[[], object], dtype: torch.dtype, draw: int) -> int:
    """Runs `action`, with every result of a cast to the coarser `dtype` moved by one step of that
    dtype, up or down at random; returns the number of such casts. Equal draws move alike."""
    generator = torch.Generator().manual_seed(draw)
    count = 0

    def move(_source: Tensor, given: Tensor, _operation: str) -> None:
        nonlocal count
        if given.dtype == dtype:
            up = torch.rand(given.shape, generator=generator) < 0.5
            given.copy_(_one_step(given, up.to(given.device)))
            count += 1

    _watch_casts(action, move)
    return count


def _one_step(values: Tensor, up: Tensor) -> Tensor:
    """Returns `values` with each moved to the next number of its dtype: `up` to a larger one (of
    floats: a larger size), else to a smaller one."""
    if not values.is_floating_point():
        limits = torch.iinfo(values.dtype)
        # One step inside the limits first, since an overflow would change the sign.
        return values.clamp(limits.min + 1, limits.max - 1) + (2 * up.to(values.dtype) - 1)
    sizes = values.double().abs()
    up = (up | (sizes == 0)) & (sizes < torch.finfo(values.dtype).max)
    bits = values.view(_BITS[values.element_size()])
    moved = (bits + (2 * up.to(bits.dtype) - 1)).view(values.dtype)
    # Not torch.where, which some dtypes of one byte lack.
    return torch.where(sizes.isfinite(), moved.view(bits.dtype), bits).view(values.dtype)


_BITS = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


def _watch_casts(action: Callable[[], object], see: _See) -> None:
    """Runs `action` and calls `see` after each cast of floats to a coarser dtype."""
    # Once something is compiled, so would be the code below, with warnings about it.
    kind = _UncompiledCasts if "torch._dynamo" in sys.modules else _Casts
    with kind(see):
        action()


# The operations that cast. Others with another dtype in than out make something new (zeros_like, a
# view of the bytes).
_CASTS = {torch.ops.aten._to_copy, torch.ops.aten.copy_, torch.ops.aten.copy}
_See = Callable[[Tensor, Tensor, str], None]
"""Is called with what a cast was given, its result, and the operation."""


class _Casts(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Sees the casts of a floating-point tensor to a lower precision.

    A dispatch mode sees what torch finally runs, below autograd: also the casts inside a library
    function, and those of an operation that torch splits into several.
    """

    def __init__(self, see: _See) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._see = see

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Recent torch asks this once for each class. True, its default, imports torch._dynamo at
        the first operation seen, which takes as long as importing torch."""
        return False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        if func.overloadpacket not in _CASTS:
            return result
        for given in result if isinstance(result, tuple | list) else (result,):
            # Cheap tests first: most copies keep their dtype.
            if isinstance(given, Tensor) and given.dtype in ROUNDOFF:
                for source in _tensors((*args, *(kwargs or {}).values())):
                    if is_coarser(given.dtype, source.dtype):
                        self._see(source, given, str(func))
        return result


class _UncompiledCasts(_Casts):  # type: ignore[no-untyped-call]
    """The same, which dynamo does not compile."""

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return True

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return super().__torch_dispatch__(func, types, args, kwargs)


def _tensors(arguments: Iterable[Any]) -> Iterator[Tensor]:
    """Yields the floating-point tensors among `arguments` and in their lists. Skips tensors without
    dimensions: torch treats them as numbers, which take the dtype of the other operand."""
    for argument in arguments:
        if isinstance(argument, Tensor):
            if argument.is_floating_point() and argument.dim() > 0:
                yield argument
        elif isinstance(argument, tuple | list):
            yield from _tensors(argument)


def is_coarser(target: torch.dtype, source: torch.dtype) -> bool:
    """Whether `target` rounds more than `source`; false for a `source` that holds no floats."""
    return ROUNDOFF[target] > ROUNDOFF.get(source, torch.inf)


def _changed(source: Tensor, given: Tensor) -> bool:
    """Whether a cast changed a value. A cast to integers always counts: the rounding came just
    before it."""
    if source.shape != given.shape or not given.is_floating_point():
        return True
    before, after = source.detach().double(), given.detach().double()
    usual = before.isfinite() & (before.abs() < _MOST)
    return bool(((before != after) & usual).any())
