"""The contract itself: does a subject say the same with its cache as without it?"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from kvfuzz.case.case import Case
from kvfuzz.case.layout import layout
from kvfuzz.case.verdict import Verdict
from kvfuzz.errors import one_line
from kvfuzz.oracle.compare import Comparison, compare, verdict_from
from kvfuzz.oracle.reference import (
    Reference,
    agree,
    last_logits,
    prefixwise,
    reference,
    tolerance_for,
)
from kvfuzz.oracle.sensitivity import is_vacuous, lost_precision
from kvfuzz.oracle.tolerance import Tolerance
from kvfuzz.subjects.dtypes import coarsest, compute_dtype
from kvfuzz.subjects.float64 import Float64Subject
from kvfuzz.subjects.precision import rounded_to
from kvfuzz.subjects.protocol import Subject, require_fit, require_protocol
from kvfuzz.subjects.run import CachedPathRaised, Refused, run_cached, run_uncached, seeded


def check(
    subject: Subject,
    case: Case,
    name: str = "subject",
    *,
    leeway: float = 1.0,
    trace: bool = True,
    probe: bool = True,
) -> Verdict:
    """Judge every position of every row of `case`, cached against uncached.

    The same case on the same subject gives the same verdict: torch's global generator, which a
    subject might draw from, is seeded by the case and left as it was. A path that raises alone is
    a divergence, with the error; when both raise, the case is discarded, and so it is when one
    raises in the float64 lane alone.

    When the logits do not differ, two questions more are asked: does the cached path round to a
    lower precision where the uncached one does not (`trace`), and would a corrupted cache have been
    noticed (`probe`)? `leeway` is that of a calibration, and multiplies what is allowed outside
    float64. Raises InvalidCase if the case does not fit the subject, InvalidSubject if the subject
    breaks the protocol; they call it `name`.
    """
    require_fit(require_protocol(subject, name), case, name)
    return check_agreement(subject, case, name, leeway=leeway, trace=trace, probe=probe)


def check_agreement(
    subject: Subject,
    case: Case,
    name: str = "subject",
    *,
    leeway: float = 1.0,
    trace: bool = True,
    probe: bool = True,
) -> Verdict:
    """`check` on a subject that its factory has checked."""
    with seeded(case.seed):
        expected = reference(subject, case, name, leeway)
        verdict = check_against(expected, subject, case, name)
        verdict, expected = _upheld(verdict, expected, subject, case, name, leeway)
        return _weighed(verdict, expected, subject, case, trace, probe)


def quick_check(subject: Subject, case: Case, name: str = "subject") -> Verdict:
    """The verdict on `case` where it only matters whether the paths diverge.

    Nothing is asked about what an agreement is worth, and no noise is measured where the logits
    differ by less than is allowed without any: `excess` is then that of the smallest tolerance
    there is, and a position at which rounding hides everything counts as agreed. In all else it is
    `check_agreement` without `trace` and `probe`, at a fraction of the time.
    """
    with seeded(case.seed):
        expected = reference(subject, case, name, noise=False)
        cached = _cached(subject, case, name)
        verdict = _against(expected, cached, case)
        if verdict.first is not None:
            # The same logits are judged again: a second run might meet what the first left behind.
            expected = reference(subject, case, name)
            verdict = _against(expected, cached, case)
        return _upheld(verdict, expected, subject, case, name)[0]


def _upheld(
    verdict: Verdict,
    expected: Reference,
    subject: Subject,
    case: Case,
    name: str,
    leeway: float = 1.0,
) -> tuple[Verdict, Reference]:
    """`verdict`, and what was `expected`, once an accusation was held to all that speaks for the
    subject."""
    if verdict.first is not None and not expected.prefixwise:
        verdict, expected = _held_to_the_prefix(verdict, expected, subject, case, name, leeway)
    if verdict.first is not None:
        verdict, expected = _held_to_its_islands(verdict, expected, subject, case, name, leeway)
    if verdict.error is not None and isinstance(subject, Float64Subject):
        own = check_agreement(subject.subject, case, name, trace=False, probe=False)
        if own.error is None:
            verdict = Verdict("discarded", reason=f"not in float64: {verdict.error}")
    return verdict, expected


def _weighed(
    verdict: Verdict, expected: Reference, subject: Subject, case: Case, trace: bool, probe: bool
) -> Verdict:
    """`verdict`, once it is known what its agreement is worth."""
    if verdict.status not in ("agreed", "weak"):
        return verdict
    logits, tolerance = expected.logits, _the(expected.tolerance)
    assert logits is not None
    lost = lost_precision(subject, case, compute_dtype(logits.dtype, subject)) if trace else None
    if lost is not None:
        return replace(verdict, status="diverged", excess=torch.inf, precision=lost)
    table = layout(case).table
    if (
        probe
        and verdict.status == "agreed"
        and is_vacuous(subject, case, table(logits), tolerance.at(table))
    ):
        reason = "a corrupted cache would have given the same logits"
        return replace(verdict, status="vacuous", reason=reason)
    return verdict


def _held_to_the_prefix(
    verdict: Verdict, expected: Reference, subject: Subject, case: Case, name: str, leeway: float
) -> tuple[Verdict, Reference]:
    """Before an accusation the uncached path is held to its definition, a run over the prefix
    alone, at the position that is accused."""
    assert verdict.first is not None
    assert expected.logits is not None
    position = verdict.first.position
    at_fault = expected.logits[:, position : position + 1]
    alone = last_logits(subject, layout(case).prefix(position + 1), name)
    tolerance = _the(expected.tolerance).between(position, position + 1)
    if isinstance(alone, Tensor) and agree(alone, at_fault, tolerance):
        return verdict, expected
    expected = prefixwise(subject, case, name, expected.logits, leeway)
    return check_against(expected, subject, case, name), expected


def _held_to_its_islands(
    verdict: Verdict, expected: Reference, subject: Subject, case: Case, name: str, leeway: float
) -> tuple[Verdict, Reference]:
    """Nor is a path accused of the rounding that both have: if the uncached one passes through a
    coarser dtype than its own, the noise of that is what counts. Not in float64, where no subject
    is put whose logits have passed through less."""
    before = _the(expected.tolerance)
    if before.dtype == torch.float64:
        return verdict, expected
    try:
        rows = layout(case).sequences
        islands = [target for _, target in rounded_to(lambda: run_uncached(subject, rows))]
        if coarsest(before.dtype, *islands) == before.dtype:
            return verdict, expected
        whole = run_uncached(subject, rows)
    except Exception:
        return verdict, expected  # what cannot be watched is judged as it was
    found = tolerance_for(subject, case, whole, expected.logits, leeway, islands)
    expected = replace(expected, tolerance=found)
    return check_against(expected, subject, case, name), expected


def check_against(
    expected: Reference, subject: Subject, case: Case, name: str = "subject"
) -> Verdict:
    """Judge the cached path of `subject` on `case` against uncached logits found before."""
    return _against(expected, _cached(subject, case, name), case)


def _cached(subject: Subject, case: Case, name: str) -> Tensor | Refused | CachedPathRaised:
    """The logits of the cached path, or why there are none."""
    try:
        return run_cached(subject, case, name)
    except (Refused, CachedPathRaised) as error:
        return error


def _against(
    expected: Reference, cached: Tensor | Refused | CachedPathRaised, case: Case
) -> Verdict:
    """The verdict on what the `cached` path gave for `case`, against what was `expected`."""
    if isinstance(cached, Refused):
        return Verdict("discarded", reason=str(cached))
    if isinstance(cached, CachedPathRaised):
        message = one_line(cached.error)
        if expected.error is not None:
            return Verdict("discarded", reason=f"both paths raised ({message})")
        return Verdict(
            "diverged",
            excess=torch.inf,
            error=f"the cached path raised {message}",
            error_step=cached.step.index,
        )
    if expected.logits is None:
        assert expected.error is not None
        message = one_line(expected.error)
        return Verdict("diverged", excess=torch.inf, error=f"the uncached path raised {message}")
    return verdict_from(compare_paths(cached, expected, case), case, expected.prefixwise)


def compare_paths(logits: Tensor, expected: Reference, case: Case) -> Comparison:
    """Compare `logits` [rows, columns, vocab] of the token table of `case` with what was
    `expected`."""
    assert expected.logits is not None
    found, tolerance = layout(case), _the(expected.tolerance)
    fed = None if found.plain else found.fed.to(logits.device)
    return compare(logits, found.table(expected.logits), tolerance.at(found.table), fed)


def _the(tolerance: Tolerance | None) -> Tolerance:
    assert tolerance is not None
    return tolerance
