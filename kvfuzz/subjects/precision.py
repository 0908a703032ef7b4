"""Detects casts to a lower precision in the operations of a run."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from kvfuzz.subjects.dtypes import ROUNDOFF

# Numbers that stand for infinity in a mask round to something else, and mean the same.
_MOST = 1e30


def rounded_to(action: Callable[[], object]) -> dict[tuple[torch.dtype, torch.dtype], str]:
    """The casts to a lower precision in `action` that changed a value: (from, to) -> operation."""
    losses = _Losses()
    with losses:
        action()
    return losses.found


# Other operations that take one dtype and give another make something new (zeros like it, a view of
# its bytes).
_CASTS = {torch.ops.aten._to_copy, torch.ops.aten.copy_, torch.ops.aten.copy}


class _Losses(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Finds the casts that take a floating-point tensor and give one of lower precision."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.found: dict[tuple[torch.dtype, torch.dtype], str] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        if func.overloadpacket not in _CASTS:
            return result
        for given in result if isinstance(result, tuple | list) else (result,):
            # Most give float64 or float32 from the same, and should not be held up.
            if isinstance(given, Tensor) and given.dtype in ROUNDOFF:
                for source in _tensors((*args, *(kwargs or {}).values())):
                    if _coarser(given.dtype, source.dtype) and _changed(source, given):
                        self.found.setdefault((source.dtype, given.dtype), str(func))
        return result


def _tensors(arguments: Iterable[Any]) -> Iterator[Tensor]:
    """The floating-point tensors among `arguments` and in their lists. A single number that takes
    part in an operation has no precision of its own."""
    for argument in arguments:
        if isinstance(argument, Tensor):
            if argument.is_floating_point() and argument.dim() > 0:
                yield argument
        elif isinstance(argument, tuple | list):
            yield from _tensors(argument)


def _coarser(target: torch.dtype, source: torch.dtype) -> bool:
    return ROUNDOFF[target] > ROUNDOFF.get(source, torch.inf)


def _changed(source: Tensor, given: Tensor) -> bool:
    """Whether a cast changed a value. One to integers, which comes after the rounding itself, is
    taken to."""
    if source.shape != given.shape or not given.is_floating_point():
        return True
    before, after = source.detach().double(), given.detach().double()
    usual = before.isfinite() & (before.abs() < _MOST)
    return bool(((before != after) & usual).any())
