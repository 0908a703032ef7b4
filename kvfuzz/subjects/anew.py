"""Builds a subject anew in float64.

The float64 twin of a subject widens the tensors that it holds. A constant that the constructor
derived from a weight was rounded to the subject's own dtype by then: where the other path derives
it on each call, the two differ by that rounding, and nothing is wrong. Built in float64, the
subject derives it in float64. A fault of the same size stays, since the new subject is judged as
exactly as any other.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from kvfuzz.case.case import Case
from kvfuzz.subjects.dtypes import ROUNDOFF
from kvfuzz.subjects.float64 import Float64Subject, Promotion, promoting, weights_of
from kvfuzz.subjects.run import run_cached, run_uncached, seeded

PROBED = 12
"""How many tokens the paths are compared over."""
LEAST = 2.0**-46
"""The least difference of the paths, as a share of the largest logit, that is looked into."""
MOST = 2.0**8
"""How many roundoffs of its dtype a constant may move a logit by."""
REMOVED = 2.0**-10
"""The share of the difference that may be left in a subject built anew."""
WEIGHTS_ALIKE = 64
"""How many roundoffs of its dtype a weight may differ by: it is drawn, and then scaled."""


def needs_float64(subject: Float64Subject, build: Callable[[], Any]) -> bool:
    """Whether the paths of `subject` differ in float64 only by what its constructor rounded.

    So it is if `build` in float64 gives a subject with the same weights whose paths do not differ,
    and those of `subject` still do.
    """
    most = MOST * max((ROUNDOFF.get(dtype, 0.0) for dtype in subject.twin.native), default=0.0)
    try:
        before = _difference(subject)
        if not LEAST < before <= most:
            return False
        made = build_in_float64(subject, build)
        gone = _difference(made) <= REMOVED * before and _difference(subject) == before
        return gone and _same_weights(subject.own, made.subject)
    except (Exception, SystemExit):
        return False  # the cases will show what raises


def build_in_float64(subject: Float64Subject, build: Callable[[], Any]) -> Float64Subject:
    """Returns what `build` gives where float64 stands for the dtypes of `subject`."""
    native = subject.twin.native
    with promoting(_PromotionOfNew(native)):
        made = build()
    return Float64Subject(made, own=subject.own, native=native)


def _difference(subject: Any) -> float:
    """Returns the largest difference of the two paths over a few tokens, as a share of the largest
    logit."""
    length = min(PROBED, subject.max_length or PROBED)
    rows = tuple(tuple(t % subject.vocab_size for t in range(n, n + length)) for n in (1, 3))
    sizes = (length // 2, *(1,) * (length - length // 2))
    case = Case(rows, sizes if length > 1 else (1,))
    with seeded(0):
        uncached = run_uncached(subject, rows).double()
        cached = run_cached(subject, case).double()
    return float((uncached - cached).abs().max() / uncached.abs().max())


def _same_weights(own: Any, made: Any) -> bool:
    """Whether two subjects have the same weights, to the rounding of the dtype of `own`."""
    pairs = list(zip(weights_of(own), weights_of(made), strict=True))
    return all(
        weight.shape == other.shape
        and bool(
            (weight.detach().double() - other.detach().double()).abs().amax()
            <= WEIGHTS_ALIKE * ROUNDOFF.get(weight.dtype, 0.0) * weight.detach().abs().amax()
        )
        for weight, other in pairs
        if weight.numel()
    )


class _PromotionOfNew(Promotion):
    """Draws random numbers as the default dtype of the subject would, and widens them: a generator
    gives other numbers in float64."""

    def __init__(self, native: frozenset[torch.dtype]) -> None:
        super().__init__(native)
        self._default = torch.get_default_dtype()

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        if func in _DRAW_NEW:
            kwargs = {**(kwargs or {})}
            kwargs.setdefault("dtype", self._default)
            drawn = func(*args, **kwargs)
            return drawn.double() if drawn.dtype in self._wide else drawn
        if func in _DRAW_INTO:
            given = {**(kwargs or {})}
            tensor, *others = [given.pop("tensor"), *args] if "tensor" in given else args
            if tensor.dtype == torch.float64:
                narrow = torch.empty_like(tensor, dtype=self._default)
                with torch.no_grad():
                    return tensor.copy_(func(narrow.detach(), *others, **given))
        return super().__torch_function__(func, types, args, kwargs)


_DRAW_NEW = {torch.rand, torch.randn, torch.rand_like, torch.randn_like}
_DRAW_INTO = {
    *(Tensor.normal_, Tensor.uniform_, Tensor.exponential_, Tensor.log_normal_),
    # Those of nn.init that a mode sees; what they call is hidden from it.
    *(nn.init.normal_, nn.init.uniform_, nn.init.kaiming_uniform_),
}
