"""What the uncached path says of a case: the logits of every prefix, and how far from them another
honest path may be."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from kvfuzz.case.case import Case
from kvfuzz.case.layout import Layout, layout
from kvfuzz.errors import InvalidSubject
from kvfuzz.oracle.compare import compare
from kvfuzz.oracle.noise import Unmeasurable, logits_noise
from kvfuzz.oracle.tolerance import Tolerance, constant, declared, measured
from kvfuzz.subjects.dtypes import coarsest, compute_dtype
from kvfuzz.subjects.protocol import Subject, cache_dtype
from kvfuzz.subjects.run import Rows, run_uncached


@dataclass(frozen=True)
class Reference:
    """What the uncached path says about the sequences of a case (`kvfuzz.case.layout`): logits
    [sequences, time, vocab] and how far from them another honest path may be, or the error it
    raised. `prefixwise` when the logits come from one run per prefix."""

    logits: Tensor | None = None
    tolerance: Tolerance | None = None
    error: Exception | None = None
    prefixwise: bool = False


def reference(
    subject: Subject,
    case: Case,
    name: str = "subject",
    leeway: float = 1.0,
    *,
    noise: bool = True,
) -> Reference:
    """The uncached logits of every prefix of the sequences of `case`, and the tolerance for them.

    By the contract they come from one run per prefix. A causal decoder gives them all in one run
    over the whole rows; that this subject does is shown on the case itself, by a run over the
    first step's tokens alone. Where the two differ, every prefix is run. Without `noise` the
    tolerance is the smallest that any noise would give.
    """
    found = layout(case)
    part = _part(case, found)
    try:
        whole = run_uncached(subject, found.sequences, name)
        alone = run_uncached(subject, found.prefix(part), name) if part else whole
    except InvalidSubject:
        raise
    except Exception as error:
        return Reference(error=error)
    tolerance = tolerance_for(subject, case, whole, leeway=leeway, noise=noise)
    if part == 0 or agree(alone, whole[:, :part], tolerance.between(0, part)):
        return Reference(whole, tolerance)
    return prefixwise(subject, case, name, whole, leeway)


def _part(case: Case, found: Layout) -> int:
    """The length of the prefix that is run alone: the first step's, or the shortest sequence's."""
    longest = len(found.sequences[0])
    if min(found.lengths) < longest:
        return min(found.lengths)
    first = next(step for step in case.steps() if step.feeds)
    return first.size if first.size < longest else longest - 1


def tolerance_for(
    subject: Subject,
    case: Case,
    whole: Tensor,
    logits: Tensor | None = None,
    leeway: float = 1.0,
    islands: Sequence[torch.dtype] = (),
    noise: bool = True,
) -> Tolerance:
    """How far from the uncached `logits` [sequences, time, vocab] (default: `whole`) another honest
    path may be. `whole` are those of one run over all sequences of `case`, whose noise is measured.

    `islands` are coarser dtypes that the uncached path is known to pass through. What a cache
    loses that is declared to be lossy is part of the noise: the weights are perturbed
    by the roundoff of its dtype. Falls back to a constant for a subject that cannot be measured.
    Without `noise` that is taken to be nought.
    """
    logits = whole if logits is None else logits
    stored = cache_dtype(subject)
    declared_dtypes = (stored,) if stored else ()
    dtype = coarsest(compute_dtype(whole.dtype, subject), *declared_dtypes, *islands)
    bound = getattr(subject, "cache_bound", None)
    if bound is not None:
        return declared(logits, bound, dtype)
    leeway = 1.0 if dtype == torch.float64 else leeway
    if not noise:
        return measured(logits, torch.zeros_like(logits[..., 0]), dtype, leeway)
    try:
        found = logits_noise(subject, layout(case).sequences, whole, dtype)
    except Unmeasurable:
        return constant(logits, getattr(subject, "width", None), dtype, leeway)
    for row, length in enumerate(layout(case).lengths):
        found[row, length:] = 0.0  # what only fills a row up has no say
    return measured(logits, found, dtype, leeway)


def prefixwise(subject: Subject, case: Case, name: str, whole: Tensor, leeway: float) -> Reference:
    """What one uncached run per prefix says. The noise is that of the `whole` run, whose own error
    has no part in it."""
    found = prefixwise_logits(subject, case, name)
    if isinstance(found, Exception):
        return Reference(error=found, prefixwise=True)
    tolerance = tolerance_for(subject, case, whole, found, leeway)
    return Reference(found, tolerance, prefixwise=True)


def prefixwise_logits(subject: Subject, case: Case, name: str) -> Tensor | Exception:
    """The last logits of one uncached run per prefix of the sequences of `case`, [sequences, time,
    vocab], or the error that one raised."""
    rows = layout(case)
    last = []
    for stop in range(1, len(rows.sequences[0]) + 1):
        logits = last_logits(subject, rows.prefix(stop), name)
        if isinstance(logits, Exception):
            return logits
        last.append(logits)
    return torch.cat(last, dim=1)


def last_logits(subject: Subject, rows: Rows, name: str) -> Tensor | Exception:
    """The last logits [batch, 1, vocab] of an uncached run over `rows`, or the error that it
    raised."""
    try:
        return run_uncached(subject, rows, name)[:, -1:]
    except InvalidSubject:
        raise
    except Exception as error:
        return error


def agree(part: Tensor, whole: Tensor, tolerance: Tolerance) -> bool:
    return not bool(compare(part, whole, tolerance).diverges.any())
