"""What an agreement is worth: is precision lost that the logits do not show, and would this case
have noticed a wrong cache?"""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from kvfuzz.case.case import Case, Step
from kvfuzz.case.layout import layout
from kvfuzz.oracle.compare import compare
from kvfuzz.oracle.tolerance import Tolerance
from kvfuzz.subjects.dtypes import dtype_name
from kvfuzz.subjects.float64 import Twin, signs, weights_of
from kvfuzz.subjects.precision import _coarser, rounded_to
from kvfuzz.subjects.protocol import Subject, cache_dtype
from kvfuzz.subjects.run import CachedPathRaised, run_cached, run_uncached
from kvfuzz.subjects.tensors import floating_tensors

# How many steps of a case are run again: code depends on the kind of a step, and there are three.
MOST_STEPS = 3
# The relative corruption of a cache that a case must be able to notice, by the dtype of its logits.
CORRUPTION = {torch.float64: 1e-6, torch.float32: 1e-2}
CORRUPTION_COARSE = 0.5


def lost_precision(subject: Subject, case: Case, computed: torch.dtype) -> str | None:
    """What the cached path rounds, and the uncached path does not, to a dtype coarser than that in
    which the subject `computed`; in words, None if nothing.

    Told from the operations themselves, without a tolerance. A cast counts if it changed a value.
    The dtype that the subject declares for its cache is exempt, and so is what is no coarser.
    """
    first = case.up_to_call(MOST_STEPS)
    try:
        uncached = rounded_to(lambda: run_uncached(subject, layout(first).sequences))
        cached = rounded_to(lambda: run_cached(subject, first))
    except Exception:
        return None  # what cannot be traced was judged by its logits
    exempt = cache_dtype(subject)
    for (source, target), operation in cached.items():
        declared = exempt is not None and not _coarser(target, exempt)
        if not declared and (source, target) not in uncached and _coarser(target, computed):
            return (
                f"the cached path rounds {dtype_name(source)} to {dtype_name(target)} "
                f"({operation}), which the uncached path never does"
            )
    return None


def is_vacuous(subject: Subject, case: Case, expected: Tensor, tolerance: Tolerance) -> bool:
    """Whether a corrupted cache would give, on the first steps of `case`, logits within `tolerance`
    of the `expected`, both [rows, columns, ...] of its token table.

    Each number in the cache is changed a little, up or down, before the last call that reads it. If
    that is not noticed (a cache may hold no numbers, or unused ones), the cache is corrupted
    through what was fed before. False for a case that reads no cache.
    """
    first = case.up_to_call(MOST_STEPS)
    calls = [step for step in first.steps() if step.feeds]
    readers = [number for number, step in enumerate(calls) if step.before[0]]
    if not readers:
        return False
    last = calls[readers[-1]]
    columns = slice(last.start, last.stop)
    size = CORRUPTION.get(tolerance.dtype, CORRUPTION_COARSE)
    bound, wanted = tolerance.between(last.start, last.stop), expected[:, columns]
    fed = layout(first).fed[:, columns].to(wanted.device)

    def unnoticed(watched: Subject, tried: Case) -> bool:
        try:
            found = run_cached(watched, tried)[:, columns]
        except (CachedPathRaised, RuntimeError):
            return False
        return not bool(compare(found, wanted, bound, fed).diverges.any())

    changed = replace(first, tokens=_otherwise_begun(first, last, subject.vocab_size))
    corrupting: Any = _Corrupting(subject, readers[-1], size)
    return unnoticed(corrupting, first) and unnoticed(subject, changed)


def _otherwise_begun(case: Case, last: Step, vocab_size: int) -> tuple[tuple[int, ...], ...]:
    """The tokens of `case` with others in front of what `last` feeds: another first one, or, where
    that may be gone by then, all of them."""
    stop = 1 if case.is_plain else last.start
    return tuple(
        (*((token + 1) % vocab_size for token in row[:stop]), *row[stop:]) for row in case.tokens
    )


class _Corrupting:
    """`subject`, whose cache is corrupted by a relative `size` before call number `index`."""

    def __init__(self, subject: Subject, index: int, size: float) -> None:
        self._subject = subject
        self._left = index
        self._size = size
        # Kept, since the number of an object that is gone may be another's.
        self._weights = {id(weight): weight for weight in weights_of(subject)}

    def __getattr__(self, name: str) -> Any:
        return getattr(self._subject, name)

    def cached(self, tokens: Tensor, cache: Any, **given: Tensor) -> Any:
        self._left -= 1
        if self._left != -1:
            return self._subject.cached(tokens, cache, **given)
        twin = getattr(self._subject, "twin", None)
        # What a cache shares with a subject in the float64 lane is float64 while that runs.
        with twin.running() if isinstance(twin, Twin) and twin.always else nullcontext():
            tensors = [t for t in floating_tensors(cache, modules=False) if self._is_cache(t)]
            saved = [tensor.clone() for tensor in tensors]
            try:
                for draw, tensor in enumerate(tensors):
                    sign = signs(tensor.numel(), draw % 8).view(tensor.shape).to(tensor.device)
                    tensor.copy_(tensor.double() * (1 + self._size * sign))
                return self._subject.cached(tokens, cache, **given)
            finally:
                # A subject may hold on to what it calls its cache.
                for tensor, value in zip(tensors, saved, strict=True):
                    tensor.copy_(value)

    def _is_cache(self, tensor: Tensor) -> bool:
        """Not a weight that the cache can reach, nor a view that shows one number many times."""
        return id(tensor) not in self._weights and not (0 in tensor.stride() and tensor.numel() > 1)
