"""Tests how sensitive an agreement is.

Two questions about a case that agreed: does the cached path lose precision that the logits do not
show, and would the case have noticed a corrupted cache?
"""

from __future__ import annotations

from contextlib import nullcontext, suppress
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from kvfuzz.case.case import Case, Step
from kvfuzz.case.layout import layout
from kvfuzz.oracle.compare import compare
from kvfuzz.oracle.tolerance import Tolerance
from kvfuzz.subjects.dtypes import dtype_name
from kvfuzz.subjects.float64 import Twin, weights_of
from kvfuzz.subjects.perturb import signs
from kvfuzz.subjects.precision import is_coarser, record_casts
from kvfuzz.subjects.protocol import Subject, cache_dtype
from kvfuzz.subjects.run import CachedPathRaised, compared, run_cached, run_uncached
from kvfuzz.subjects.tensors import floating_tensors

# How many calls of a case are run again: code differs by the kind of a call, of which there are 3.
MOST_STEPS = 3
# The relative corruption of a cache that a case must notice, by the dtype of the tolerance.
CORRUPTION = {torch.float64: 1e-6, torch.float32: 1e-2}
CORRUPTION_COARSE = 0.5


def lost_precision(subject: Subject, case: Case, computed: torch.dtype) -> str | None:
    """Describes a cast of the cached path, absent from the uncached path, to a dtype coarser than
    the one that the subject `computed` in; None if there is none.

    This needs no tolerance: it looks at the operations. A cast counts if it changed a value. The
    declared dtype of the cache is exempt, and every dtype that is no coarser than it.
    """
    first = case.up_to_call(MOST_STEPS)
    exempt = cache_dtype(subject)
    try:
        lossy = {
            cast: operation
            for cast, operation in record_casts(lambda: run_cached(subject, first)).items()
            if is_coarser(cast[1], computed) and (exempt is None or is_coarser(cast[1], exempt))
        }
        if not lossy:
            return None
        shared = record_casts(lambda: run_uncached(subject, layout(first).sequences))
    except Exception:
        return None  # a subject that cannot be watched is judged by its logits alone
    for (source, target), operation in lossy.items():
        if (source, target) not in shared:
            return (
                f"the cached path rounds {dtype_name(source)} to {dtype_name(target)} "
                f"({operation}), which the uncached path never does"
            )
    return None


def is_vacuous(subject: Subject, case: Case, expected: Tensor, tolerance: Tolerance) -> bool:
    """Whether a corrupted cache would pass the first calls of `case`: give logits within
    `tolerance` of the `expected` ones, both [rows, columns, ...] of its token table.

    The cache of other tokens is a corrupted one: where they change the uncached logits of the last
    of these calls that reads a cache, agreement proves that the cache was not that of other tokens.
    Where they do not, the cached path decides: every number in the cache is changed a little, up or
    down, before that call, and then other tokens are fed before it. False for a case that reads no
    cache.
    """
    found = _first_calls(case)
    if found is None:
        return False
    first, index = found
    last = [step for step in first.steps() if step.feeds][index]
    columns = slice(last.start, last.stop)
    size = CORRUPTION.get(tolerance.dtype, CORRUPTION_COARSE)
    bound, wanted = tolerance.between(last.start, last.stop), expected[:, columns]
    cells = compared(subject, first)
    fed = None if cells is None else cells[:, columns].to(wanted.device)

    def noticed(found: Tensor) -> bool:
        return bool(compare(found[:, columns], wanted, bound, fed).diverges.any())

    def unnoticed(watched: Subject, tried: Case) -> bool:
        try:
            return not noticed(run_cached(watched, tried))
        except (CachedPathRaised, RuntimeError):
            return False

    other = replace(first, tokens=_change_earlier(first, last, subject.vocab_size))
    texts = layout(other)
    with suppress(Exception):  # an uncached path that raises on other tokens decides nothing
        if noticed(texts.table(run_uncached(subject, texts.sequences))):
            return False
    corrupting: Any = _Corrupting(subject, index, size)
    return unnoticed(corrupting, first) and unnoticed(subject, other)


def _first_calls(case: Case) -> tuple[Case, int] | None:
    """Returns the first calls of `case`, and the number of the last one that reads a cache; None if
    no call does. Those are MOST_STEPS calls, or more: the first calls of several caches may all be
    the first of their cache."""
    calls = [step for step in case.steps() if step.feeds]
    reading = [number for number, step in enumerate(calls) if step.filled]
    if not reading:
        return None
    count = max(MOST_STEPS, 1 + reading[0])
    return case.up_to_call(count), [number for number in reading if number < count][-1]


def _change_earlier(case: Case, last: Step, vocab_size: int) -> tuple[tuple[int, ...], ...]:
    """Returns the tokens of `case` with others before those that `last` feeds: the first one or, if
    an operation may have dropped that, all of them."""
    stop = 1 if case.is_plain else last.start
    return tuple(
        (*((token + 1) % vocab_size for token in row[:stop]), *row[stop:]) for row in case.tokens
    )


class _Corrupting:
    """`subject`, but with its cache corrupted by a relative `size` during call number `index`."""

    def __init__(self, subject: Subject, index: int, size: float) -> None:
        self._subject = subject
        self._left = index
        self._size = size
        # Keeps the weights alive: the id of a collected object could be given to another.
        self._weights = {id(weight): weight for weight in weights_of(subject)}

    def __getattr__(self, name: str) -> Any:
        return getattr(self._subject, name)

    def cached(self, tokens: Tensor, cache: Any, **given: Tensor) -> Any:
        self._left -= 1
        if self._left != -1:
            return self._subject.cached(tokens, cache, **given)
        twin = getattr(self._subject, "twin", None)
        # A tensor that a cache shares with a Float64Subject is float64 only inside the twin.
        with twin.running() if isinstance(twin, Twin) and twin.always else nullcontext():
            tensors = [t for t in floating_tensors(cache, modules=False) if self._is_cache(t)]
            saved = [tensor.clone() for tensor in tensors]
            try:
                for draw, tensor in enumerate(tensors):
                    sign = signs(tensor.numel(), draw % 8).view(tensor.shape).to(tensor.device)
                    tensor.copy_(tensor.double() * (1 + self._size * sign))
                return self._subject.cached(tokens, cache, **given)
            finally:
                # Restored, since the subject may keep the tensors of its cache and use them again.
                for tensor, value in zip(tensors, saved, strict=True):
                    tensor.copy_(value)

    def _is_cache(self, tensor: Tensor) -> bool:
        """Whether `tensor` is neither a weight that the cache refers to nor an expanded view:
        writing to one would fail."""
        return id(tensor) not in self._weights and not (0 in tensor.stride() and tensor.numel() > 1)
