"""The contract itself: does a subject say the same with its cache as without it?"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from kvfuzz.case import Case
from kvfuzz.compare import Comparison, compare, judge
from kvfuzz.errors import InvalidSubject, one_line
from kvfuzz.evidence import is_vacuous, lost_precision, rounded_to
from kvfuzz.layout import Layout, layout
from kvfuzz.noise import Unmeasurable, logits_noise
from kvfuzz.run import CachedPathRaised, Refused, Rows, run_cached, run_uncached, seeded
from kvfuzz.subject import Subject, cache_dtype, conforming, fitting
from kvfuzz.tolerance import Tolerance, coarsest, compute_dtype, constant, declared, measured
from kvfuzz.twin import InDouble
from kvfuzz.verdict import Verdict


@dataclass(frozen=True)
class Reference:
    """What the uncached path says about the sequences of a case (`kvfuzz.layout`): logits
    [sequences, time, vocab] and how far from them another honest path may be, or the error it
    raised. `prefixwise` when the logits come from one run per prefix."""

    logits: Tensor | None = None
    tolerance: Tolerance | None = None
    error: Exception | None = None
    prefixwise: bool = False


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
    fitting(conforming(subject, name), case, name)
    with seeded(case.seed):
        expected = reference(subject, case, name, leeway)
        verdict = check_against(expected, subject, case, name)
        if verdict.first is not None and not expected.prefixwise:
            verdict, expected = _held_to_the_prefix(verdict, expected, subject, case, name, leeway)
        if verdict.first is not None:
            verdict, expected = _held_to_its_islands(verdict, expected, subject, case, name, leeway)
        if verdict.error is not None and isinstance(subject, InDouble):
            own = check(subject.subject, case, name, trace=False, probe=False)
            if own.error is None:
                return Verdict("discarded", reason=f"not in float64: {verdict.error}")
        return _weighed(verdict, expected, subject, case, trace, probe)


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
    alone = _last_logits(subject, layout(case).prefix(position + 1), name)
    tolerance = _the(expected.tolerance).between(position, position + 1)
    if isinstance(alone, Tensor) and _agree(alone, at_fault, tolerance):
        return verdict, expected
    expected = _prefixwise(subject, case, name, expected.logits, leeway)
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


def reference(
    subject: Subject, case: Case, name: str = "subject", leeway: float = 1.0
) -> Reference:
    """The uncached logits of every prefix of the sequences of `case`, and the tolerance for them.

    By the contract they come from one run per prefix. A causal decoder gives them all in one run
    over the whole rows; that this subject does is shown on the case itself, by a run over the
    first step's tokens alone. Where the two differ, every prefix is run.
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
    tolerance = tolerance_for(subject, case, whole, leeway=leeway)
    if part == 0 or _agree(alone, whole[:, :part], tolerance.between(0, part)):
        return Reference(whole, tolerance)
    return _prefixwise(subject, case, name, whole, leeway)


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
) -> Tolerance:
    """How far from the uncached `logits` [sequences, time, vocab] (default: `whole`) another honest
    path may be. `whole` are those of one run over all sequences of `case`, whose noise is measured.

    `islands` are coarser dtypes that the uncached path is known to pass through. What a cache
    loses that is declared to be lossy is part of the noise: the weights are perturbed
    by the roundoff of its dtype. Falls back to a constant for a subject that cannot be measured.
    """
    logits = whole if logits is None else logits
    stored = cache_dtype(subject)
    declared_dtypes = (stored,) if stored else ()
    dtype = coarsest(compute_dtype(whole.dtype, subject), *declared_dtypes, *islands)
    bound = getattr(subject, "cache_bound", None)
    if bound is not None:
        return declared(logits, bound, dtype)
    leeway = 1.0 if dtype == torch.float64 else leeway
    try:
        noise = logits_noise(subject, layout(case).sequences, whole, dtype)
    except Unmeasurable:
        return constant(logits, getattr(subject, "width", None), dtype, leeway)
    for row, length in enumerate(layout(case).lengths):
        noise[row, length:] = 0.0  # what only fills a row up has no say
    return measured(logits, noise, dtype, leeway)


def check_against(
    expected: Reference, subject: Subject, case: Case, name: str = "subject"
) -> Verdict:
    """Judge the cached path of `subject` on `case` against uncached logits found before."""
    try:
        logits = run_cached(subject, case, name)
    except Refused as refused:
        return Verdict("discarded", reason=str(refused))
    except CachedPathRaised as raised:
        message = one_line(raised.error)
        if expected.error is not None:
            return Verdict("discarded", reason=f"both paths raised ({message})")
        return Verdict(
            "diverged",
            excess=torch.inf,
            error=f"the cached path raised {message}",
            error_step=raised.step.index,
        )
    if expected.logits is None:
        assert expected.error is not None
        message = one_line(expected.error)
        return Verdict("diverged", excess=torch.inf, error=f"the uncached path raised {message}")
    return judge(compare_paths(logits, expected, case), case, expected.prefixwise)


def compare_paths(logits: Tensor, expected: Reference, case: Case) -> Comparison:
    """Compare `logits` [rows, columns, vocab] of the token table of `case` with what was
    `expected`."""
    assert expected.logits is not None
    found, tolerance = layout(case), _the(expected.tolerance)
    fed = None if found.plain else found.fed.to(logits.device)
    return compare(logits, found.table(expected.logits), tolerance.at(found.table), fed)


def _prefixwise(subject: Subject, case: Case, name: str, whole: Tensor, leeway: float) -> Reference:
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
        logits = _last_logits(subject, rows.prefix(stop), name)
        if isinstance(logits, Exception):
            return logits
        last.append(logits)
    return torch.cat(last, dim=1)


def _last_logits(subject: Subject, rows: Rows, name: str) -> Tensor | Exception:
    """The last logits [batch, 1, vocab] of an uncached run over `rows`, or the error that it
    raised."""
    try:
        return run_uncached(subject, rows, name)[:, -1:]
    except InvalidSubject:
        raise
    except Exception as error:
        return error


def _agree(part: Tensor, whole: Tensor, tolerance: Tolerance) -> bool:
    return not bool(compare(part, whole, tolerance).diverges.any())


def _the(tolerance: Tolerance | None) -> Tolerance:
    assert tolerance is not None
    return tolerance
