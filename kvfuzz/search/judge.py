"""Judges one case: agreement first, then a companion law."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

from kvfuzz.case.case import Case
from kvfuzz.case.verdict import Verdict
from kvfuzz.errors import UsageError, did_you_mean
from kvfuzz.localize.latent_law import check_latent
from kvfuzz.localize.traced_states import ExpectedStates, can_trace, expected_states
from kvfuzz.oracle.agreement import (
    Agreement,
    check_agreement,
    check_in_two,
    compare_paths,
    quick_check,
)
from kvfuzz.oracle.laws import LAWS, check_companion
from kvfuzz.oracle.reference import KnownRuns, Reference, find_reference, measure_noise
from kvfuzz.subjects.float64 import Float64Subject
from kvfuzz.subjects.protocol import Subject, require_fit, require_protocol


@dataclass(frozen=True)
class KnownReference:
    """The reference of `case`, computed once for all subjects that have the uncached path of
    `subject` and differ in their cached path.

    `found` has the least tolerance: the noise is not measured until some logits differ by more.
    """

    case: Case
    subject: Subject
    found: Reference

    @classmethod
    def find(cls, subject: Subject, case: Case, leeway: float = 1.0) -> KnownReference:
        """Computes the reference of `case`, without its noise."""
        return cls(case, subject, find_reference(subject, case, leeway=leeway, noise=False))

    @cached_property
    def expected(self) -> Reference:
        """The reference with its measured noise."""
        return measure_noise(self.found, self.subject, self.case)

    def check(self, subject: Subject) -> Agreement:
        """Compares the cached path of `subject` with the reference. Where no logits differ by more
        than the least tolerance, a weak position counts as agreed."""
        if not self.found.is_least or "expected" in vars(self):
            return compare_paths(self.expected, subject, self.case)
        return check_in_two(self.found, lambda: self.expected, subject, self.case)

    @cached_property
    def states(self) -> ExpectedStates | None:
        """The states of the uncached path; None if the subject reports none."""
        return expected_states(self.subject, self.case) if can_trace(self.subject) else None


@dataclass(frozen=True)
class Judgement:
    """The verdict by `agreement` and, unless that diverged, by a `companion` law."""

    agreement: Verdict
    companion: Verdict | None = None

    @property
    def verdict(self) -> Verdict:
        """The verdict of the companion law if that diverged, else of agreement."""
        if self.companion is not None and self.companion.diverged:
            return self.companion
        return self.agreement


def judge(
    subject: Subject,
    case: Case,
    law: str = "agreement",
    name: str = "subject",
    *,
    leeway: float = 1.0,
    trace: bool = True,
    probe: bool = True,
    measure: bool = False,
) -> Judgement:
    """Judges `case` by agreement, and then by `law`, one of LAWS.

    The factory has checked `subject`. `leeway`, `trace` and `probe` are those of `kvfuzz.check`.
    The noise is measured first if `measure` is true, else only where it may decide.
    """

    def judged() -> Judgement:
        found = check_agreement(
            subject, case, name, leeway=leeway, trace=trace, probe=probe, measure=measure
        )
        return _with_companion(found, law, subject, case, name)

    if law == "latent" or not isinstance(subject, Float64Subject) or subject.twin.promotes:
        return judged()
    with subject.staying():
        found = judged()
    # An island of float32, which the twin should have promoted, would look like a divergence.
    return judged() if found.verdict.diverged or subject.twin.promotes else found


def judge_quickly(
    subject: Subject, case: Case, law: str = "agreement", known: KnownReference | None = None
) -> Judgement:
    """Judges only whether `case` diverges; skips the checks of how much an agreement proves.
    `known` is the reference of `case`, if it has been computed."""
    found = Agreement(quick_check(subject, case)) if known is None else known.check(subject)
    if law == "latent" and found.verdict.status != "agreed":
        return Judgement(found.verdict)
    return _with_companion(found, law, subject, case, "subject", known)


def _with_companion(
    found: Agreement,
    law: str,
    subject: Subject,
    case: Case,
    name: str,
    known: KnownReference | None = None,
) -> Judgement:
    if found.verdict.diverged or law == "agreement":
        return Judgement(found.verdict)
    if law == "latent":
        return Judgement(
            found.verdict, check_latent(subject, case, known.states if known else None)
        )
    runs = found.runs if known is None else replace(found.runs, expected=known.expected)
    return Judgement(found.verdict, check_companion(law, subject, case, name, known=runs))


def judge_by(
    law: str,
    subject: Subject,
    case: Case,
    name: str = "subject",
    leeway: float = 1.0,
    known: KnownReference | None = None,
) -> Verdict:
    """Judges `case` by `law` alone, one of LAWS. The factory has checked `subject`. Raises
    UsageError for an unknown law."""
    if law not in LAWS:
        raise UsageError(
            f"there is no law {law!r}{did_you_mean(law, LAWS)}: choose from {', '.join(LAWS)}"
        )
    if law == "agreement":
        return check_agreement(subject, case, name, leeway=leeway).verdict
    if law == "latent":
        return check_latent(subject, case, known.states if known else None)
    if known is None:
        return check_companion(law, subject, case, name, leeway)
    return check_companion(law, subject, case, name, leeway, KnownRuns(known.expected))


def check_law(
    law: str,
    subject: Subject,
    case: Case,
    name: str = "subject",
    leeway: float = 1.0,
    *,
    known: KnownReference | None = None,
) -> Verdict:
    """Judges `case` by `law` alone, one of LAWS.

    Outside float64 the tolerance is multiplied by `leeway`, that of a calibration. `known` is the
    reference, if it has been computed. The verdict is `discarded` if the law does not apply to the
    case, or if a path raises on the input that the law changes. Raises UsageError for an unknown
    law, InvalidCase if the case does not fit the subject, InvalidSubject if the subject breaks the
    protocol; errors call it `name`.
    """
    require_fit(require_protocol(subject, name), case, name)
    return judge_by(law, subject, case, name, leeway, known)
