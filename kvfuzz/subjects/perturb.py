"""Perturbs weights and embedded tokens by a unit roundoff, up or down by random signs."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

# Larger numbers stand for infinity in a mask; a perturbation could overflow them to infinity.
_MOST = 1e30
# Larger weights are perturbed in pieces of this many entries: what is needed besides stays small.
_PIECE = 2**20
# The least length of a row of random signs, and the most that is kept in memory.
_LEAST_ROW, _MOST_KEPT = 2**18, 2**23
# Draw number n begins n * _SHIFT signs into the row; there are at most _MOST_DRAWS.
_MOST_DRAWS, _SHIFT = 64, 17
# Draws from this number on perturb embedded tokens, those before it weights.
_EMBEDDED = 32


@contextmanager
def perturbing(
    weights: Sequence[Tensor], values: Sequence[Tensor] | None = None
) -> Iterator[Callable[[float, int], None]]:
    """Yields `perturb(size, draw)`, which multiplies each entry of the `weights`, and of all
    embedded tokens, by 1 + size or 1 - size; random signs number `draw` decide which. The product
    is rounded to the dtype of the weight, float64 in a twin. The weights are restored when the
    context ends, from `values`, tensors of the same numbers, or else from copies."""
    embedding, now = F.embedding, [0.0, 0]

    @functools.wraps(embedding)
    def embedded(*args: Any, **kwargs: Any) -> Tensor:
        """Perturbs each occurrence of a token on its own: if a model subtracts neighbours, a
        perturbation of the table would cancel between equal tokens, as real rounding does not."""
        found = embedding(*args, **kwargs)
        with torch._C.DisableTorchFunction():  # hidden from the modes that watch the subject
            sign = signs(found.numel(), int(now[1]) + _EMBEDDED).view(found.shape)
            moved = found * (1 + now[0] * sign.to(found.device))
            return moved if in_float64 else moved.to(found.dtype)

    with torch.no_grad():
        in_float64 = all(weight.dtype == torch.float64 for weight in weights)
        pieces = list(_pieces(weights, values))
        sizes = [value.numel() for _, value in pieces]

        def perturb(size: float, draw: int) -> None:
            now[:] = size, draw
            for (weight, value), sign in zip(pieces, _signs_of(sizes, draw), strict=True):
                # In place, so that a view of a weight that the subject keeps sees it too.
                _move(weight, value.double(), sign.to(weight.device).view(weight.shape), size)

        F.embedding = embedded
        try:
            yield perturb
        finally:
            F.embedding = embedding
            for weight, value in pieces:
                weight.copy_(value)


def _move(weight: Tensor, exact: Tensor, sign: Tensor, size: float) -> None:
    """Writes `exact` x (1 + `size` x `sign`) into `weight`, rounded to its dtype."""
    if weight.dtype == torch.float64:
        torch.addcmul(exact, exact, sign, value=size, out=weight)
    else:
        weight.copy_(torch.addcmul(exact, exact, sign, value=size))


def _pieces(
    weights: Sequence[Tensor], values: Sequence[Tensor] | None
) -> Iterator[tuple[Tensor, Tensor]]:
    """Yields the parts of `weights` to perturb, none of them long, each with its numbers: a copy
    or, where that would be large, those in `values`."""
    if sum(weight.numel() for weight in weights) <= _MOST_KEPT:
        values = None
    for weight, value in zip(weights, values or weights, strict=True):
        whole = weight.detach()
        if not whole.numel() or float(_largest(whole)) >= _MOST:
            continue
        known = _copy(whole) if value.dtype == whole.dtype else value.detach()
        if whole.numel() > _PIECE and whole.is_contiguous() and known.is_contiguous():
            rows = (torch.split(one.view(-1), _PIECE) for one in (whole, known))
            yield from zip(*rows, strict=True)
        else:
            yield whole, known


def _copy(weight: Tensor) -> Tensor:
    """Returns a copy of `weight`. That of a large one is float32 if this loses nothing, as of a
    float32 checkpoint that was read in float64."""
    if weight.numel() > _PIECE and weight.dtype == torch.float64:
        narrow = weight.float()
        if bool((narrow == weight).all()):
            return narrow
    return weight.clone()


_largest = functools.partial(torch.linalg.vector_norm, ord=float("inf"))
"""Returns the largest |entry|, without a copy of all of them."""


def _signs_of(sizes: Sequence[int], draw: int) -> Iterator[Tensor]:
    """Yields `signs(sum(sizes), draw)` in pieces of these sizes. A row that is too long to be kept
    is never held whole."""
    count = sum(sizes)
    if _length_of_row(count) <= _MOST_KEPT:
        yield from torch.split(signs(count, draw), list(sizes))
        return
    generator = torch.Generator().manual_seed(0)
    _random_signs(draw * _SHIFT, generator)
    for size in sizes:
        yield _random_signs(size, generator)


def signs(count: int, draw: int) -> Tensor:
    """Returns random signs -1 or 1, float64 [count], the same for the same `draw`.

    All draws share one long row of signs, and each begins at another place in it: that is cheaper
    than to draw anew for every case.
    """
    length = _length_of_row(count)
    row = _row(length) if length <= _MOST_KEPT else _row.__wrapped__(length)
    return row[draw * _SHIFT : draw * _SHIFT + count]


def _length_of_row(count: int) -> int:
    return max(_LEAST_ROW, 1 << (count + _MOST_DRAWS * _SHIFT).bit_length())


@functools.lru_cache(maxsize=4)
def _row(length: int) -> Tensor:
    return _random_signs(length, torch.Generator().manual_seed(0))


def _random_signs(count: int, generator: torch.Generator) -> Tensor:
    """Returns the next `count` signs of the generator. One row begins with the same signs as a
    longer one, however it is divided."""
    row = torch.empty(count, dtype=torch.float64)
    return row.random_(0, 2, generator=generator).mul_(2).sub_(1)
