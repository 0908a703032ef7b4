"""The float64 lane: places in a model that are hard-coded to float32 run in float64 too."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

_NARROW = {torch.float16: Tensor.half, torch.bfloat16: Tensor.bfloat16}


@contextmanager
def promoted(
    function_calls: bool = True, native: frozenset[torch.dtype] = frozenset()
) -> Iterator[Promotion]:
    """Inside, whatever asks torch for float32 gets float64, and float64 is the default dtype.

    A model in float64 often keeps islands such as `softmax(..., dtype=torch.float32)` or
    `x.float()`: they round to 1e-7, which hides small faults and looks like one. Requests for
    float16 or bfloat16 are left alone, because a cache that rounds to them is a fault to find;
    unless it is a dtype that the model is `native` to, which rounds nothing there.

    Everything is as it was when the block ends, also by an exception. The promotion says afterwards
    whether it was `needed`. Without `function_calls`, float64 is the default and no more.
    """
    default = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    promotion = Promotion(native)
    try:
        with promotion if function_calls else nullcontext():
            yield promotion
    finally:
        torch.set_default_dtype(default)


class Promotion(TorchFunctionMode):
    """Gives float64 to every call that asks for float32 or a `native` dtype; `needed` tells whether
    one did."""

    def __init__(self, native: frozenset[torch.dtype] = frozenset()) -> None:
        super().__init__()
        self.needed = False
        self._wide = dict.fromkeys({torch.float32} | native, torch.float64)
        self._wide[torch.complex64] = torch.complex128
        self._methods = {Tensor.float, *(_NARROW[dtype] for dtype in native if dtype in _NARROW)}

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        if func in self._methods:
            self.needed = True
            func = Tensor.double
        if any(self._asked(value) for value in args):
            self.needed = True
            args = tuple(map(self._wider, args))
        if not kwargs:
            return func(*args)
        if any(self._asked(value) for value in kwargs.values()):
            self.needed = True
            kwargs = {name: self._wider(value) for name, value in kwargs.items()}
        return func(*args, **kwargs)

    def _asked(self, value: Any) -> bool:
        return isinstance(value, torch.dtype) and value in self._wide

    def _wider(self, value: Any) -> Any:
        return self._wide[value] if self._asked(value) else value
