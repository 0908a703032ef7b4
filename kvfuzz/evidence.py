"""What an agreement is worth: is precision lost that the logits do not show, and would this case
have noticed a wrong cache?"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import nullcontext
from itertools import islice
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from kvfuzz.case import Case, Step
from kvfuzz.compare import compare
from kvfuzz.run import CachedPathRaised, Rows, run_cached, run_uncached
from kvfuzz.subject import Subject, cache_dtype
from kvfuzz.tensors import floating_tensors
from kvfuzz.tolerance import ROUNDOFF, Tolerance, name_of
from kvfuzz.twin import Twin, signs, weights_of

# How many steps of a case are run again: code depends on the kind of a step, and there are three.
MOST_STEPS = 3
# The relative corruption of a cache that a case must be able to notice, by the dtype of its logits.
CORRUPTION = {torch.float64: 1e-6, torch.float32: 1e-2}
CORRUPTION_COARSE = 0.5
# Numbers that stand for infinity in a mask round to something else, and mean the same.
_MOST = 1e30


def lost_precision(subject: Subject, case: Case, computed: torch.dtype) -> str | None:
    """What the cached path rounds, and the uncached path does not, to a dtype coarser than that in
    which the subject `computed`; in words, None if nothing.

    Told from the operations themselves, without a tolerance. A cast counts if it changed a value.
    The dtype that the subject declares for its cache is exempt.
    """
    steps = _first_steps(case)
    rows = case.prefix(steps[-1].stop)
    try:
        uncached = rounded_to(lambda: run_uncached(subject, rows))
        cached = rounded_to(lambda: run_cached(subject, rows, steps))
    except Exception:
        return None  # what cannot be traced was judged by its logits
    exempt = cache_dtype(subject)
    for (source, target), operation in cached.items():
        if target != exempt and (source, target) not in uncached and _coarser(target, computed):
            return (
                f"the cached path rounds {name_of(source)} to {name_of(target)} ({operation}), "
                "which the uncached path never does"
            )
    return None


def rounded_to(action: Callable[[], object]) -> dict[tuple[torch.dtype, torch.dtype], str]:
    """The casts to a lower precision in `action` that changed a value: (from, to) -> operation."""
    losses = _Losses()
    with losses:
        action()
    return losses.found


def is_vacuous(subject: Subject, case: Case, expected: Tensor, tolerance: Tolerance) -> bool:
    """Whether a corrupted cache would give, on the first steps of `case`, logits within
    `tolerance` of the `expected` [batch, time, vocab].

    Each number in the cache is changed a little, up or down, before the last step. If that is not
    noticed (a cache may hold no numbers, or unused ones), the cache is corrupted through the first
    token of each row. False for a case of one step, which reads no cache.
    """
    steps = _first_steps(case)
    if len(steps) == 1:
        return False
    last = steps[-1]
    rows = case.prefix(last.stop)
    changed = [((row[0] + 1) % subject.vocab_size, *row[1:]) for row in rows]
    size = CORRUPTION.get(tolerance.dtype, CORRUPTION_COARSE)

    def unnoticed(watched: Subject, tokens: Rows) -> bool:
        try:
            logits = run_cached(watched, tokens, steps)
        except (CachedPathRaised, RuntimeError):
            return False
        found, bound = logits[:, last.start : last.stop], tolerance.between(last.start, last.stop)
        wanted = expected[:, last.start : last.stop]
        return not bool(compare(found, wanted, bound).diverges.any())

    return unnoticed(_Corrupting(subject, last.index, size), rows) and unnoticed(subject, changed)


class _Corrupting:
    """`subject`, whose cache is corrupted by a relative `size` before step `index`."""

    def __init__(self, subject: Subject, index: int, size: float) -> None:
        self._subject = subject
        self._left = index
        self._size = size
        # Kept, since the number of an object that is gone may be another's.
        self._weights = {id(weight): weight for weight in weights_of(subject)}

    def __getattr__(self, name: str) -> Any:
        return getattr(self._subject, name)

    def cached(self, tokens: Tensor, cache: Any) -> Any:
        self._left -= 1
        if self._left != -1:
            return self._subject.cached(tokens, cache)
        twin = getattr(self._subject, "twin", None)
        # What a cache shares with a subject in the float64 lane is float64 while that runs.
        with twin.running() if isinstance(twin, Twin) and twin.always else nullcontext():
            tensors = [t for t in floating_tensors(cache, modules=False) if self._is_cache(t)]
            saved = [tensor.clone() for tensor in tensors]
            try:
                for draw, tensor in enumerate(tensors):
                    sign = signs(tensor.numel(), draw % 8).view(tensor.shape).to(tensor.device)
                    tensor.copy_(tensor.double() * (1 + self._size * sign))
                return self._subject.cached(tokens, cache)
            finally:
                # A subject may hold on to what it calls its cache.
                for tensor, value in zip(tensors, saved, strict=True):
                    tensor.copy_(value)

    def _is_cache(self, tensor: Tensor) -> bool:
        """Not a weight that the cache can reach, nor a view that shows one number many times."""
        return id(tensor) not in self._weights and not (0 in tensor.stride() and tensor.numel() > 1)


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


def _first_steps(case: Case) -> list[Step]:
    return list(islice(case.steps(), MOST_STEPS))
