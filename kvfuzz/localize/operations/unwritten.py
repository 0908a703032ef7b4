"""Tracks which entries of a tensor nothing has written during a recording.

The slots of a preallocated cache hold what was in memory before the first write: what an earlier
run has left in them, or nothing at all after `torch.empty`. That is no state of this run, so the
recorder keeps zeros in its place, as a cache that begins with zeros has them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from typing import Any

import torch
from torch import Tensor

from kvfuzz.localize.operations.dataflow import storage_of
from kvfuzz.subjects.uninitialised import ALLOCATING

# These give the entries of their first operand, in its shape.
_COPYING = {"to", "clone", "type_as", "float", "double", "half", "bfloat16", "contiguous"} | {
    "__deepcopy__",
    "cpu",
    "cuda",
}
MOVING = {
    "__getitem__",
    "index_select",
    "repeat_interleave",
    "repeat",
    "flip",
    "roll",
    "cat",
    "concat",
    "stack",
    "reshape",
    "flatten",
    "pad",
}
"""The operations that give some entries of their operands, in another place."""


TOUCHING = ALLOCATING | _COPYING | MOVING
"""The operations that `UnwrittenMemory.note` is to be told of, besides those that write."""
Call = tuple[Callable[..., Any], tuple[Any, ...], Mapping[str, Any]]
"""A function with its arguments."""


class UnwrittenMemory:
    """The entries of each storage that have been written, as far as there are any that have not.

    `outside` are the tensors that the subject holds before the recording. What they hold counts
    until the first write into their memory, after which only what is written does.
    """

    def __init__(self, outside: Iterable[Tensor] = ()) -> None:
        self._alive = list(outside)  # the address of a freed storage may come again
        self._outside = {storage_of(tensor) for tensor in self._alive} - {0}
        self._written: dict[int, Tensor] = {}

    def note(self, name: str, call: Call, result: Tensor, writes: bool) -> None:
        """Notes what the operation `name` did to the memory of its `result`, a new tensor or the
        one that it `writes` into."""
        if name in ALLOCATING:
            self._begin(result)
        elif writes:
            self._write(name, call, result)
        elif name in _COPYING:
            self._copy(call[1], result)
        elif self._written and name in MOVING:
            self._move(call, result)

    def is_read(self, operands: Iterable[Tensor], result: Tensor) -> bool:
        """Whether an operation computed its `result` from memory that nothing has written to; a
        view or a copy of it still holds nothing."""
        if not self._written or self.written(result) is not None:
            return False
        return any(self.written(operand) is not None for operand in operands)

    def written(self, tensor: Tensor) -> Tensor | None:
        """Returns which entries of `tensor` have been written, a bool tensor of its shape; None if
        all of them have."""
        if not self._written:
            return None
        flags = self._written.get(storage_of(tensor))
        if flags is None:
            return None
        found = _view(flags, tensor)
        return None if found is None or bool(found.all()) else found

    def blanked(self, copy: Tensor, tensor: Tensor) -> Tensor:
        """Returns `copy`, a copy of `tensor`, with zeros where nothing has been written."""
        written = self.written(tensor)
        return copy if written is None else copy.masked_fill_(~written, 0)

    def _begin(self, tensor: Tensor) -> None:
        size = tensor.untyped_storage().nbytes() // max(tensor.element_size(), 1)
        self._written[storage_of(tensor)] = torch.zeros(
            size, dtype=torch.bool, device=tensor.device
        )
        self._alive.append(tensor)

    def _copy(self, args: tuple[Any, ...], result: Tensor) -> None:
        source = args[0] if args else None
        if not isinstance(source, Tensor) or source.shape != result.shape:
            return
        if storage_of(source) == storage_of(result):
            return
        if storage_of(source) in self._outside:
            self._outside.add(storage_of(result))
            self._alive.append(result)
        if (written := self.written(source)) is not None:
            self._take(result, written)

    def _move(self, call: Call, result: Tensor) -> None:
        func, args, kwargs = call
        if not args or self.written(result) is not None:
            return  # a view, whose memory is known
        source = args[0]
        parts = list(source) if isinstance(source, list | tuple) else [source]
        if not any(isinstance(p, Tensor) and self.written(p) is not None for p in parts):
            return
        flags = [self._flags(part) for part in parts]
        moving = flags if isinstance(source, list | tuple) else flags[0]
        with suppress(Exception):  # such as for an operation that takes no bool tensor
            moved = func(moving, *args[1:], **kwargs)
            if moved.shape == result.shape:
                self._take(result, moved)

    def _flags(self, tensor: Tensor) -> Tensor:
        written = self.written(tensor)
        return torch.ones_like(tensor, dtype=torch.bool) if written is None else written

    def _take(self, result: Tensor, written: Tensor) -> None:
        """Notes that of the new tensor `result` these entries have been written."""
        self._begin(result)
        flags = _view(self._written[storage_of(result)], result)
        if flags is not None:
            flags.copy_(written)

    def _write(self, name: str, call: Call, result: Tensor) -> None:
        storage = storage_of(result)
        if storage in self._outside and storage not in self._written:
            self._begin(result)
        flags = self._written.get(storage)
        if flags is None or (found := _view(flags, result)) is None:
            return
        try:
            _mark(name, call, found, self)
        except (RuntimeError, IndexError, TypeError, ValueError):
            found.fill_(True)


def _mark(name: str, call: Call, flags: Tensor, memory: UnwrittenMemory) -> None:
    """Sets the `flags` of the entries that the operation `name` has written."""
    _, args, kwargs = call
    rest = [*args[1:], *(kwargs[key] for key in ("dim", "index") if key in kwargs)]
    if name == "__setitem__":
        flags[rest[0]] = True
    elif name in ("index_copy_", "index_fill_", "index_add_"):
        flags.index_fill_(rest[0], rest[1], True)
    elif name.startswith("scatter"):
        flags.scatter_(rest[0], rest[1], True)
    elif name == "index_put_":
        flags[tuple(rest[0])] = True
    elif name in ("masked_fill_", "masked_scatter_"):
        flags |= rest[0]
    elif name == "copy_" and (written := memory.written(rest[0])) is not None:
        flags.copy_(written)
    else:
        flags.fill_(True)


def _view(flags: Tensor, tensor: Tensor) -> Tensor | None:
    """Returns those of the `flags` of a storage that belong to `tensor`; None where another dtype
    counts other entries."""
    end = tensor.storage_offset() + sum(
        (size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True)
    )
    if tensor.numel() and end >= flags.numel():
        return None
    return flags.as_strided(tensor.shape, tensor.stride(), tensor.storage_offset())
