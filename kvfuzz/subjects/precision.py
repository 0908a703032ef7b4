"""Finds the casts to a lower precision among the operations of a run."""

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
    # Once something is compiled, so would be the code below, with warnings about it.
    losses = _UncompiledLosses() if "torch._dynamo" in sys.modules else _Losses()
    with losses:
        action()
    return losses.found


# The operations that cast. Others with another dtype in than out make something new (zeros_like, a
# view of the bytes).
_CASTS = {torch.ops.aten._to_copy, torch.ops.aten.copy_, torch.ops.aten.copy}


class _Losses(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Records the casts of a floating-point tensor to a lower precision that change a value.

    A dispatch mode sees what torch finally runs, below autograd: also the casts inside a library
    function, and those of an operation that torch splits into several.
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.found: dict[tuple[torch.dtype, torch.dtype], str] = {}

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
                    if is_coarser(given.dtype, source.dtype) and _changed(source, given):
                        self.found.setdefault((source.dtype, given.dtype), str(func))
        return result


class _UncompiledLosses(_Losses):  # type: ignore[no-untyped-call]
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
