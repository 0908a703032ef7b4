"""What one operation of torch is given and gives: its tensors, and what it writes into."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

# What Python calls for `x[i] = y` and for `x += y` and its like.
_AUGMENTED = {"__setitem__"} | {
    f"__i{name}__"
    for name in ("add", "sub", "mul", "div", "truediv", "floordiv", "mod", "pow", "and", "or",
                 "xor", "lshift", "rshift")
}  # fmt: skip


def changed_by(name: str, args: tuple[Any, ...], kwargs: Mapping[str, Any] | None) -> Tensor | None:
    """The tensor that an operation wrote into, None for one that makes its result anew."""
    target = args[0] if args and isinstance(args[0], Tensor) else None
    if kwargs and isinstance(kwargs.get("out"), Tensor):
        return kwargs["out"]  # type: ignore[no-any-return]
    if target is None or name == "__get__":
        return None
    return target if name == "__set__" or is_in_place(name) else None


def is_in_place(name: str) -> bool:
    """Whether an operation of that name writes into its first operand."""
    if name.endswith("__"):
        return name in _AUGMENTED
    return name.endswith("_")


def tensors_in(thing: Any) -> list[Tensor]:
    """The tensors in `thing`, in order."""
    if isinstance(thing, Tensor):
        return [thing]
    if isinstance(thing, Mapping):
        thing = thing.values()
    elif not isinstance(thing, list | tuple):
        return []
    found: list[Tensor] = []
    for value in thing:
        if isinstance(value, Tensor):
            found.append(value)
        elif isinstance(value, list | tuple | Mapping):
            found += tensors_in(value)
    return found


def copied(tensor: Tensor) -> Tensor:
    return tensor.detach().clone() if tensor.requires_grad else tensor.clone()


def is_value(tensor: Tensor) -> bool:
    """Whether `tensor` holds numbers that can be copied; inside `vmap` it does not."""
    plain = type(tensor) in (Tensor, nn.Parameter) and not tensor.is_meta and not tensor.is_sparse
    return plain and not torch._C._functorch.is_functorch_wrapped_tensor(tensor)


def storage_of(tensor: Tensor) -> int:
    """What stands for the memory of `tensor`; 0 where it has none."""
    try:
        return tensor.untyped_storage().data_ptr()
    except (RuntimeError, NotImplementedError):
        return 0
