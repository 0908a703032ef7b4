"""Finds the reference of a case: its uncached logits, and their tolerance."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from kvfuzz.case.case import Case
from kvfuzz.case.layout import Layout, layout
from kvfuzz.errors import InvalidSubject, KvfuzzError
from kvfuzz.oracle.compare import compare
from kvfuzz.oracle.noise import Unmeasurable, logits_noise
from kvfuzz.oracle.rounding import rounding_noise
from kvfuzz.oracle.tolerance import Basis, Tolerance, constant, declared, least, measured
from kvfuzz.subjects.dtypes import coarsest, compute_dtype
from kvfuzz.subjects.float64 import TwinlessSubject
from kvfuzz.subjects.precision import record_casts
from kvfuzz.subjects.protocol import Subject, cache_dtype
from kvfuzz.subjects.run import Rows, run_uncached, seeded


@dataclass(frozen=True)
class Reference:
    """The uncached logits [sequences, time, vocab] of the sequences of a case
    (`kvfuzz.case.layout`) and their tolerance, or the error that the uncached path raised.
    `prefixwise` is true if the logits come from one run per prefix. `leeway` is that of a
    calibration, and multiplies the tolerance outside float64."""

    logits: Tensor | None = None
    tolerance: Tolerance | None = None
    error: Exception | None = None
    prefixwise: bool = False
    leeway: float = 1.0

    @property
    def is_least(self) -> bool:
        """Whether the tolerance is the least one, since the noise was not measured."""
        return self.tolerance is not None and self.tolerance.basis == "least"

    @property
    def known(self) -> tuple[Tensor, Tolerance]:
        """The logits and their tolerance, if the uncached path did not raise."""
        assert self.logits is not None
        assert self.tolerance is not None
        return self.logits, self.tolerance


@dataclass(frozen=True)
class KnownRuns:
    """The runs of a case that are known already: its reference, and its `cached` logits [rows,
    columns, vocab], as in its token table."""

    expected: Reference | None = None
    cached: Tensor | None = None


NOTHING_RUN = KnownRuns()


def find_reference(
    subject: Subject,
    case: Case,
    name: str = "subject",
    leeway: float = 1.0,
    *,
    noise: bool = True,
) -> Reference:
    """Finds the uncached logits of every prefix of the sequences of `case`, and their tolerance.

    By the contract that takes one run per prefix. A causal subject gives the same logits in one run
    over the whole rows; one more run, over a prefix alone, tests that on this case. If the two
    differ, every prefix is run. Without `noise` the tolerance is the least one, unless these runs
    differ by more.
    """
    found = layout(case)
    length = tested_prefix(case, found)
    try:
        whole = run_uncached(subject, found.sequences, name)
        alone = run_uncached(subject, found.prefix(length), name) if length else whole
    except InvalidSubject:
        raise
    except Exception as error:
        return Reference(error=error)
    tolerance = tolerance_for(subject, case, whole, leeway=leeway, noise=noise)
    expected = Reference(whole, tolerance, leeway=leeway)
    if length == 0 or agree(alone, whole[:, :length], tolerance.between(0, length)):
        return expected
    if expected.is_least:
        expected = measure_noise(expected, subject, case)
        if agree(alone, whole[:, :length], expected.known[1].between(0, length)):
            return expected
    return find_prefixwise(subject, case, name, whole, leeway)


def measure_noise(expected: Reference, subject: Subject, case: Case) -> Reference:
    """Returns the reference with the tolerance by its noise, if it has the least one.

    The cached path may have run since. If that changed the uncached logits by more than the least
    tolerance, the subject is broken, and its noise is no longer that of the reference: the least
    tolerance stays. So a fault that shows in the uncached logits cannot widen its own tolerance.
    """
    if not expected.is_least or not is_unchanged(expected, subject, case):
        return expected
    logits, _ = expected.known
    tolerance = tolerance_for(subject, case, logits, leeway=expected.leeway)
    return replace(expected, tolerance=tolerance)


def measure_islands(
    expected: Reference, subject: Subject, case: Case, leeway: float = 1.0
) -> Reference:
    """Returns the reference with the tolerance of the coarsest dtype that the uncached path casts
    to; the same one if it casts to nothing coarser than that tolerance knows.

    Skipped in float64: a subject runs there only if its logits pass through nothing coarser.
    """
    before = expected.known[1].dtype
    if before == torch.float64:
        return expected
    rows = layout(case).sequences
    try:
        islands = [target for _, target in record_casts(lambda: run_uncached(subject, rows))]
        if coarsest(before, *islands) == before:
            return expected
        whole = run_uncached(subject, rows)
    except Exception:
        return expected  # what cannot be watched is not measured anew
    found = tolerance_for(subject, case, whole, expected.logits, leeway, islands)
    return replace(expected, tolerance=found)


def is_unchanged(expected: Reference, subject: Subject, case: Case) -> bool:
    """Whether the uncached path, run again over the whole rows, still gives what is expected."""
    logits, tolerance = expected.known
    try:
        with seeded(case.seed):
            again = run_uncached(subject, layout(case).sequences)
    except KvfuzzError:
        raise
    except Exception:
        return False
    return agree(again, logits, tolerance)


def tested_prefix(case: Case, found: Layout) -> int:
    """Returns the length of the prefix to run alone: the shortest sequence if the lengths differ,
    else the first call; 0 for sequences of one token."""
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
    """Returns the tolerance of the uncached `logits` [sequences, time, vocab] (default: `whole`).

    Its noise is that of `whole`, the logits of one run over all sequences of `case`. The weights
    are perturbed by the roundoff of the coarsest dtype among that of the subject, the declared one
    of its cache, and `islands`, coarser dtypes that the uncached path passes through. If the
    rounding of the cache alone can be measured, and that is less, it replaces the declared dtype. A
    subject that cannot be measured gets a constant tolerance. Without `noise` it gets the least
    one.
    """
    logits = whole if logits is None else logits
    stored = cache_dtype(subject)
    computed = coarsest(compute_dtype(whole.dtype, subject), *islands)
    dtype = coarsest(computed, *((stored,) if stored else ()))
    bound = getattr(subject, "cache_bound", None)
    if bound is not None:
        return declared(logits, bound, dtype)
    if not noise:
        return least(logits, dtype, _leeway(leeway, dtype))

    try:
        tolerance = _by_noise(subject, case, whole, logits, dtype, leeway)
        if dtype != computed:
            rounding = rounding_noise(subject, layout(case).sequences, case, dtype)
            if rounding is not None:
                own = _by_noise(subject, case, whole, logits, computed, leeway, rounding)
                tolerance = tolerance.narrowed(own)
    except Unmeasurable:
        width = getattr(subject, "width", None)
        return constant(logits, width, dtype, _leeway(leeway, dtype))
    return tolerance


def _by_noise(
    subject: Subject,
    case: Case,
    whole: Tensor,
    logits: Tensor,
    dtype: torch.dtype,
    leeway: float,
    more: Tensor | float = 0.0,
) -> Tolerance:
    """Returns the tolerance of `logits` by the noise of `whole` in `dtype`, and `more` noise
    [sequences, time]. Raises Unmeasurable."""
    found = logits_noise(subject, layout(case).sequences, whole, dtype) + more
    for row, length in enumerate(layout(case).lengths):
        found[row, length:] = 0.0  # positions that only fill up a sequence do not count
    basis: Basis = "own dtype" if isinstance(subject, TwinlessSubject) else "measured"
    return measured(logits, found, dtype, _leeway(leeway, dtype), basis)


def _leeway(leeway: float, dtype: torch.dtype) -> float:
    return 1.0 if dtype == torch.float64 else leeway


def find_prefixwise(
    subject: Subject, case: Case, name: str, whole: Tensor, leeway: float
) -> Reference:
    """Finds the reference by one uncached run per prefix.

    The noise is measured on `whole`, the logits of one run over all sequences, against the same run
    of the twin: how far `whole` is from the prefixes adds nothing to it.
    """
    found = prefixwise_logits(subject, case, name)
    if isinstance(found, Exception):
        return Reference(error=found, prefixwise=True)
    tolerance = tolerance_for(subject, case, whole, found, leeway)
    return Reference(found, tolerance, prefixwise=True, leeway=leeway)


def prefixwise_logits(subject: Subject, case: Case, name: str) -> Tensor | Exception:
    """Returns the last logits of one uncached run per prefix of the sequences of `case`,
    [sequences, time, vocab], or the error that a run raised."""
    rows = layout(case)
    last = []
    for stop in range(1, len(rows.sequences[0]) + 1):
        logits = last_logits(subject, rows.prefix(stop), name)
        if isinstance(logits, Exception):
            return logits
        last.append(logits)
    return torch.cat(last, dim=1)


def last_logits(subject: Subject, rows: Rows, name: str) -> Tensor | Exception:
    """Returns the last logits [batch, 1, vocab] of an uncached run over `rows`, or the error that
    it raised."""
    try:
        return run_uncached(subject, rows, name)[:, -1:]
    except InvalidSubject:
        raise
    except Exception as error:
        return error


def agree(part: Tensor, whole: Tensor, tolerance: Tolerance) -> bool:
    """Whether the logits `part` and `whole` [batch, time, vocab] differ nowhere by more than
    `tolerance`."""
    return not bool(compare(part, whole, tolerance).diverges.any())
