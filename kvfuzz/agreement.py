"""The contract itself: does a subject say the same with its cache as without it?"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from kvfuzz.case import Case
from kvfuzz.compare import Comparison, compare, judge
from kvfuzz.errors import InvalidSubject, one_line
from kvfuzz.run import CachedPathRaised, run_cached, run_uncached, seeded
from kvfuzz.subject import Subject, conforming, fitting
from kvfuzz.tolerance import compute_dtype
from kvfuzz.verdict import Verdict


@dataclass(frozen=True)
class Reference:
    """What the uncached path says about a case: logits [batch, time, vocab], or the error it
    raised. `prefixwise` when they come from one run per prefix."""

    logits: Tensor | None
    error: Exception | None = None
    prefixwise: bool = False


def check(subject: Subject, case: Case, name: str = "subject") -> Verdict:
    """Judge every position of every row of `case`, cached against uncached.

    The same case on the same subject gives the same verdict: torch's global generator, which a
    subject might draw from, is seeded by the case and left as it was. A path that raises alone is
    a divergence, with the error; when both raise, the case is discarded. Raises InvalidCase if the
    case does not fit the subject, InvalidSubject if the subject breaks the protocol; they call it
    `name`.
    """
    fitting(conforming(subject, name), case, name)
    with seeded(case.seed):
        expected = reference(subject, case, name)
        verdict = check_against(expected, subject, case, name)
        if verdict.first is None or expected.prefixwise:
            return verdict
        # Before an accusation the uncached path is held to its definition, a run over the prefix
        # alone, at the position that is accused.
        assert expected.logits is not None
        stop = verdict.first.position + 1
        at_fault = expected.logits[:, stop - 1 : stop]
        alone = _last_logits(subject, case, stop, name)
        if isinstance(alone, Tensor) and _agree(alone, at_fault, subject):
            return verdict
        return check_against(_prefixwise(subject, case, name), subject, case, name)


def reference(subject: Subject, case: Case, name: str = "subject") -> Reference:
    """The uncached logits of every prefix of `case`.

    By the contract they come from one run per prefix. A causal decoder gives them all in one run
    over the whole rows; that this subject does is shown on the case itself, by a run over the
    first step's tokens alone. Where the two differ, every prefix is run.
    """
    try:
        whole = run_uncached(subject, case.tokens, name)
        part = case.schedule[0] if len(case.schedule) > 1 else case.length - 1
        if part == 0 or _agree(run_uncached(subject, _prefix(case, part), name), whole, subject):
            return Reference(whole)
    except InvalidSubject:
        raise
    except Exception as error:
        return Reference(None, error)
    return _prefixwise(subject, case, name)


def check_against(
    expected: Reference, subject: Subject, case: Case, name: str = "subject"
) -> Verdict:
    """Judge the cached path of `subject` on `case` against uncached logits found before."""
    try:
        logits = run_cached(subject, case.tokens, case.steps(), name)
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
    return judge(compare_paths(subject, logits, expected.logits), case, expected.prefixwise)


def compare_paths(subject: Subject, cached: Tensor, uncached: Tensor) -> Comparison:
    """Compare logits of two paths of `subject`, in the dtype and width that it computes in."""
    dtype = compute_dtype(uncached.dtype, getattr(subject, "model", None))
    return compare(cached, uncached, getattr(subject, "width", None), dtype)


def _prefixwise(subject: Subject, case: Case, name: str) -> Reference:
    """The last logits of one uncached run per prefix."""
    last = []
    for stop in range(1, case.length + 1):
        logits = _last_logits(subject, case, stop, name)
        if isinstance(logits, Exception):
            return Reference(None, logits, prefixwise=True)
        last.append(logits)
    return Reference(torch.cat(last, dim=1), prefixwise=True)


def _last_logits(subject: Subject, case: Case, stop: int, name: str) -> Tensor | Exception:
    """The last logits [batch, 1, vocab] of an uncached run over the first `stop` tokens, or the
    error that it raised."""
    try:
        return run_uncached(subject, _prefix(case, stop), name)[:, -1:]
    except InvalidSubject:
        raise
    except Exception as error:
        return error


def _agree(part: Tensor, whole: Tensor, subject: Subject) -> bool:
    comparison = compare_paths(subject, part, whole[:, : part.shape[1]])
    return not bool(comparison.diverges.any())


def _prefix(case: Case, stop: int) -> list[tuple[int, ...]]:
    return [row[:stop] for row in case.tokens]
