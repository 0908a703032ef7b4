"""Finds the contents of a cache as tensors that can be written to."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from kvfuzz.subjects.tensors import floating_tensors

Pair = tuple[Tensor, Tensor]
"""The keys and values of one layer [batch, heads, held, width], the newest last."""


@dataclass(frozen=True)
class CacheContents:
    """The contents of a cache of `rows` rows after a call that fed `new` slots: the keys and values
    of each layer that shows any, and every tensor with an axis of rows, moved to the front."""

    rows: int
    new: int
    layers: tuple[Pair, ...]
    states: tuple[Tensor, ...]


def find_contents(subject: Any, cache: Any, rows: int, new: int) -> CacheContents:
    """Returns the contents of `cache`; its layers by the subject's own `view`."""
    return CacheContents(rows, new, tuple(layers_of(subject, cache)), tuple(states_of(cache, rows)))


def layers_of(subject: Any, cache: Any) -> Iterator[Pair]:
    """Yields the layers that the `view` of `subject` shows, if it has one."""
    view = getattr(subject, "view", None)
    for layer in view(cache) if callable(view) else ():
        if layer is not None and all(part.dim() == 4 and part.numel() for part in layer):
            yield layer


def states_of(cache: Any, rows: int) -> Iterator[Tensor]:
    """Yields the floating-point tensors in `cache` whose first or second axis has `rows` rows, with
    that axis moved to the front."""
    for tensor in floating_tensors(cache, modules=False):
        axis = next((a for a in (0, 1) if tensor.dim() > a and tensor.shape[a] == rows), None)
        if axis is not None and tensor.numel():
            yield tensor.movedim(axis, 0)


def write(
    subject: Any, cache: Any, rows: int, new: int, change: Callable[[CacheContents], None]
) -> bool:
    """Lets `change` write into the contents of `cache`. Returns whether they changed: where a view
    is a copy, they do not."""
    before = _tensors(find_contents(subject, cache, rows, new))
    with torch._C.DisableTorchFunction():  # not an operation of the subject
        change(find_contents(subject, cache, rows, new))
    after = _tensors(find_contents(subject, cache, rows, new))
    return any(not _same(a, b) for a, b in zip(before, after, strict=True))


def _tensors(held: CacheContents) -> list[Tensor]:
    parts = [part for pair in held.layers for part in pair]
    return [tensor.clone() for tensor in (*parts, *held.states)]


def _same(one: Tensor, other: Tensor) -> bool:
    return torch.equal(one.nan_to_num(), other.nan_to_num())
