"""Judges the contract itself: a subject gives the same logits with its cache as without."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from kvfuzz.case.case import Case
from kvfuzz.case.dtypes import NARROW
from kvfuzz.case.layout import layout
from kvfuzz.case.verdict import Verdict
from kvfuzz.errors import one_line
from kvfuzz.oracle.compare import Comparison, compare, verdict_from
from kvfuzz.oracle.reference import (
    NOTHING_RUN,
    KnownRuns,
    Reference,
    agree,
    find_prefixwise,
    find_reference,
    is_unchanged,
    last_logits,
    measure_islands,
    measure_noise,
)
from kvfuzz.oracle.sensitivity import is_vacuous, lost_precision
from kvfuzz.oracle.tolerance import KAPPA
from kvfuzz.subjects.dtypes import compute_dtype, dtype_name
from kvfuzz.subjects.float64 import Float64Subject
from kvfuzz.subjects.precision import is_coarser
from kvfuzz.subjects.protocol import Subject, require_fit, require_protocol
from kvfuzz.subjects.run import CachedPathRaised, Refused, compared, run_cached, seeded


def check(
    subject: Subject,
    case: Case,
    name: str = "subject",
    *,
    leeway: float = 1.0,
    trace: bool = True,
    probe: bool = True,
) -> Verdict:
    """Compares the cached path with the uncached one at every position of every row of `case`.

    The same case on the same subject gives the same verdict: torch's global generator, which a
    subject may draw from, is seeded by the case and restored afterwards. If one path raises, that
    is a divergence, with the error. If both raise, the case is discarded, and also if a path raises
    in float64 but not in the subject's own dtype.

    If the logits agree, two more questions follow: does the cached path cast to a lower precision
    where the uncached one does not (`trace`), and would a corrupted cache have been noticed
    (`probe`)? `leeway` is that of a calibration and multiplies the allowed difference outside
    float64. Raises InvalidCase if the case does not fit the subject, and InvalidSubject if the
    subject breaks the protocol; both messages call the subject `name`.
    """
    require_fit(require_protocol(subject, name), case, name)
    return check_agreement(subject, case, name, leeway=leeway, trace=trace, probe=probe).verdict


@dataclass(frozen=True)
class Agreement:
    """The verdict by agreement, and the runs behind it."""

    verdict: Verdict
    runs: KnownRuns = NOTHING_RUN


def check_agreement(
    subject: Subject,
    case: Case,
    name: str = "subject",
    *,
    leeway: float = 1.0,
    trace: bool = True,
    probe: bool = True,
    measure: bool = False,
) -> Agreement:
    """Does the work of `check`, on a subject that its factory has checked.

    The noise is measured first if `measure` is true, else only where it may decide.
    """
    with seeded(case.seed):
        expected = find_reference(subject, case, name, leeway, noise=measure)
        cached = _try_cached(subject, case, name)
        verdict, expected = _judge_in_two(expected, cached, subject, case)
        verdict, expected = _recheck(verdict, expected, subject, case, name, leeway)
        verdict = _weigh(verdict, expected, subject, case, trace, probe)
        verdict = _compare_dtypes(verdict, expected, cached)
        return Agreement(verdict, KnownRuns(expected, _logits(cached)))


def quick_check(subject: Subject, case: Case, name: str = "subject") -> Verdict:
    """Says whether the paths diverge on `case`, in a fraction of the time of `check_agreement`.

    It skips `trace` and `probe`.
    """
    return check_agreement(subject, case, name, trace=False, probe=False).verdict


def check_in_two(
    least: Reference, expected: Callable[[], Reference], subject: Subject, case: Case
) -> Agreement:
    """Compares the cached path of `subject` with the reference of the `least` tolerance; if they
    differ, the same logits with the `expected` one, whose noise is measured only then."""
    cached = _try_cached(subject, case, "subject")
    verdict = _judge_logits(least, cached, subject, case)
    if verdict.first is not None:
        verdict = _judge_logits(expected(), cached, subject, case)
    return Agreement(verdict, KnownRuns(cached=_logits(cached)))


def _judge_in_two(
    expected: Reference, cached: Cached, subject: Subject, case: Case
) -> tuple[Verdict, Reference]:
    """Judges the `cached` logits by the least tolerance; measures the noise unless they agree, and
    judges the same logits again. (A second run of a faulty subject could differ.)

    A coarse dtype is always measured: there the least tolerance could hide faults.
    """
    verdict = _judge_logits(expected, cached, subject, case)
    if not expected.is_least or not isinstance(cached, Tensor):
        return verdict, expected
    if verdict.status == "agreed" and expected.known[1].dtype in KAPPA:
        return verdict, expected
    expected = measure_noise(expected, subject, case)
    return _judge_logits(expected, cached, subject, case), expected


def check_against(
    expected: Reference, subject: Subject, case: Case, name: str = "subject"
) -> Verdict:
    """Compares the cached path of `subject` on `case` with the `expected` uncached logits."""
    return compare_paths(expected, subject, case, name).verdict


def compare_paths(
    expected: Reference, subject: Subject, case: Case, name: str = "subject"
) -> Agreement:
    """Does the work of `check_against`, and returns the cached logits too."""
    cached = _try_cached(subject, case, name)
    return Agreement(
        _judge_logits(expected, cached, subject, case), KnownRuns(expected, _logits(cached))
    )


Cached = Tensor | Refused | CachedPathRaised
"""The logits of the cached path, or why there are none."""


def _logits(cached: Cached) -> Tensor | None:
    return cached if isinstance(cached, Tensor) else None


def _try_cached(subject: Subject, case: Case, name: str) -> Cached:
    """Runs the cached path; returns its logits or the reason that there are none."""
    try:
        return run_cached(subject, case, name)
    except (Refused, CachedPathRaised) as error:
        return error


def _judge_logits(expected: Reference, cached: Cached, subject: Subject, case: Case) -> Verdict:
    """Returns the verdict on `case` from the result of the `cached` path."""
    if isinstance(cached, Refused):
        return Verdict("discarded", reason=str(cached))
    if isinstance(cached, CachedPathRaised):
        message = one_line(cached.error)
        where = f" in {case.dtype}" if case.dtype in NARROW else ""
        if expected.error is not None:
            return Verdict("discarded", reason=f"both paths raised ({message})")
        return Verdict(
            "diverged",
            excess=torch.inf,
            error=f"the cached path raised{where} {message}",
            error_step=cached.step.index,
        )
    if expected.error is not None:
        message = one_line(expected.error)
        return Verdict("diverged", excess=torch.inf, error=f"the uncached path raised {message}")
    return verdict_from(compare_logits(cached, expected, subject, case), case, expected.prefixwise)


def compare_logits(logits: Tensor, expected: Reference, subject: Subject, case: Case) -> Comparison:
    """Compares the `logits` [rows, columns, vocab] of the token table of `case` that `subject`
    returned with the `expected` ones."""
    uncached, tolerance = expected.known
    found, cells = layout(case), compared(subject, case)
    fed = None if cells is None else cells.to(logits.device)
    return compare(logits, found.table(uncached), tolerance.at(found.table), fed)


def _recheck(
    verdict: Verdict,
    expected: Reference,
    subject: Subject,
    case: Case,
    name: str,
    leeway: float = 1.0,
) -> tuple[Verdict, Reference]:
    """Checks a divergence against every innocent explanation; returns the verdict that is left and
    the reference that it used."""
    if verdict.first is not None and not expected.prefixwise:
        verdict, expected = _recheck_prefix(verdict, expected, subject, case, name, leeway)
    if verdict.first is not None:
        verdict, expected = _recheck_islands(verdict, expected, subject, case, name, leeway)
    if verdict.error is not None and isinstance(subject, Float64Subject) and not subject.twin.stays:
        own = check_agreement(subject.own, case, name, trace=False, probe=False)
        if own.verdict.error is None:
            verdict = Verdict("discarded", reason=f"not in float64: {verdict.error}")
    return verdict, expected


def _recheck_prefix(
    verdict: Verdict, expected: Reference, subject: Subject, case: Case, name: str, leeway: float
) -> tuple[Verdict, Reference]:
    """Runs the uncached path on the prefix alone, up to the first position that differs.

    That is its definition; the reference took the logits from one run over the whole rows, which
    give the same only if the subject is causal. If not, every prefix is run alone; unless the
    cached path has changed what the uncached path gives.
    """
    assert verdict.first is not None
    logits, tolerance = expected.known
    position = verdict.first.position
    alone = last_logits(subject, layout(case).prefix(position + 1), name)
    inside = logits[:, position : position + 1]
    bound = tolerance.between(position, position + 1)
    if isinstance(alone, Tensor) and agree(alone, inside, bound):
        return verdict, expected
    if not is_unchanged(expected, subject, case):
        return verdict, expected
    expected = find_prefixwise(subject, case, name, logits, leeway)
    return check_against(expected, subject, case, name), expected


def _recheck_islands(
    verdict: Verdict, expected: Reference, subject: Subject, case: Case, name: str, leeway: float
) -> tuple[Verdict, Reference]:
    """Judges again by the noise of the coarsest dtype that the uncached path casts to: rounding
    that both paths share is no fault."""
    found = measure_islands(expected, subject, case, leeway)
    if found is expected:
        return verdict, expected
    return check_against(found, subject, case, name), found


def _compare_dtypes(verdict: Verdict, expected: Reference, cached: Cached) -> Verdict:
    """Returns `diverged` where the logits agree, but the cached path answers in a finer dtype than
    a narrow uncached one: something it made, such as a cache without a dtype, has widened it."""
    if verdict.status not in ("agreed", "weak", "vacuous") or not isinstance(cached, Tensor):
        return verdict
    uncached = expected.known[0].dtype
    if dtype_name(uncached) not in NARROW or not is_coarser(uncached, cached.dtype):
        return verdict
    found = (
        f"the cached path answers in {dtype_name(cached.dtype)}, the uncached path in "
        f"{dtype_name(uncached)}"
    )
    return replace(verdict, status="diverged", excess=torch.inf, precision=found, basis=None)


def _weigh(
    verdict: Verdict, expected: Reference, subject: Subject, case: Case, trace: bool, probe: bool
) -> Verdict:
    """Asks what an agreement is worth; returns the verdict as it is, `diverged` for lost precision
    or `vacuous`."""
    if verdict.status not in ("agreed", "weak"):
        return verdict
    logits, tolerance = expected.known
    lost = lost_precision(subject, case, compute_dtype(logits.dtype, subject)) if trace else None
    if lost is not None:
        # No tolerance decides, so the verdict has no basis.
        return replace(verdict, status="diverged", excess=torch.inf, precision=lost, basis=None)
    # The tolerance is the one that decided. A corrupted cache that the least one notices could not
    # have agreed by it; by the measured one it could, and that case would be vacuous.
    table = layout(case).table
    if (
        probe
        and verdict.status == "agreed"
        and is_vacuous(subject, case, table(logits), tolerance.at(table))
    ):
        reason = "a corrupted cache would have given the same logits"
        return replace(verdict, status="vacuous", reason=reason)
    return verdict
