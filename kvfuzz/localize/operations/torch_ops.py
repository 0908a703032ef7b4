"""Reads one torch operation: the tensors that it takes and returns, and the one it writes into."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch._C._functorch import is_functorch_wrapped_tensor

# What Python calls for `x[i] = y` and for `x += y` and the like.
_AUGMENTED = {"__setitem__"} | {
    f"__i{name}__"
    for name in ("add", "sub", "mul", "div", "truediv", "floordiv", "mod", "pow", "and", "or",
                 "xor", "lshift", "rshift")
}  # fmt: skip


_SEVERAL = (list, tuple)
# The types of most operands that are not tensors: a quick test, since every operand is looked at.
_PLAIN = {bool, int, float, str, slice, type(None), type(...), torch.dtype, torch.device}
_TENSORS = (Tensor, nn.Parameter)


def written_tensor(
    name: str, args: tuple[Any, ...], kwargs: Mapping[str, Any] | None
) -> Tensor | None:
    """Returns the tensor that an operation wrote into; None if it made a new result."""
    if kwargs and isinstance(kwargs.get("out"), Tensor):
        return kwargs["out"]  # type: ignore[no-any-return]
    if not (is_in_place(name) or name == "__set__") or not args:
        return None
    return args[0] if isinstance(args[0], Tensor) else None


@functools.lru_cache(maxsize=1024)
def is_in_place(name: str) -> bool:
    """Whether an operation of that name writes into its first operand."""
    return name[-1:] == "_" and (name in _AUGMENTED or not name.endswith("__"))


def tensors_in(thing: Any) -> list[Tensor]:
    """Returns the tensors in `thing` and its lists and mappings, in order."""
    if isinstance(thing, Tensor):
        return [thing]
    if isinstance(thing, _SEVERAL):
        values: Iterable[Any] = thing
    elif thing is not None and isinstance(thing, Mapping):
        values = thing.values()
    else:
        return []
    found: list[Tensor] = []
    for value in values:
        if isinstance(value, Tensor):
            found.append(value)
        elif type(value) not in _PLAIN:
            found += tensors_in(value)
    return found


def written_part(name: str, args: tuple[Any, ...], changed: Tensor) -> Tensor:
    """Returns the part of `changed` that the operation wrote: the entry at the whole numbers of an
    index, else all of it.

    In a cache of all layers in one tensor this is the entry of one layer. The others are ahead or
    behind in the run that it is compared with, so comparing all of them would always differ.
    """
    if name != "__setitem__" or len(args) < 2:
        return changed
    places = args[1] if isinstance(args[1], tuple) else (args[1],)
    # A new axis or a mask (which may span several axes) shifts the axes of the indices after it.
    moved = any(p is None or getattr(p, "dtype", None) == torch.bool for p in places)
    if moved or int not in map(type, places):
        return changed
    whole = slice(None)
    with torch._C.DisableTorchFunction():
        return changed[tuple(p if type(p) is int or p is ... else whole for p in places)]


def results_in(answer: Any) -> list[Tensor]:
    """Returns the tensors in what an operation returned."""
    if type(answer) is Tensor:
        return [answer]
    return tensors_in(answer) if isinstance(answer, _SEVERAL) else []


def copy_of(tensor: Tensor) -> Tensor:
    return tensor.detach().clone() if tensor.requires_grad else tensor.clone()


def as_real(tensor: Tensor) -> Tensor:
    """Returns `tensor`, or if it is complex its real and imaginary parts along a new last axis: no
    part is lost when they are compared."""
    return torch.view_as_real(tensor.resolve_conj()) if tensor.is_complex() else tensor


def is_value(tensor: Tensor) -> bool:
    """Whether `tensor` holds numbers that can be copied; inside `vmap` it does not."""
    plain = type(tensor) in _TENSORS and not tensor.is_meta and not tensor.is_sparse
    return plain and not is_functorch_wrapped_tensor(tensor)
