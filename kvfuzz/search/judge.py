"""Judges one case: agreement first, then a companion law."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from kvfuzz.case.case import Case
from kvfuzz.case.verdict import Verdict
from kvfuzz.errors import UsageError, did_you_mean
from kvfuzz.localize.latent_law import check_latent
from kvfuzz.localize.traced_states import ExpectedStates, can_trace, expected_states
from kvfuzz.oracle.agreement import check_against, check_agreement, quick_check
from kvfuzz.oracle.laws import LAWS, check_companion
from kvfuzz.oracle.reference import Reference
from kvfuzz.subjects.protocol import Subject, require_fit, require_protocol


@dataclass(frozen=True)
class KnownReference:
    """What the uncached path of `subject` gives for `case`: found once, for all the subjects that
    differ from it in their cached paths alone."""

    case: Case
    subject: Subject
    expected: Reference

    @cached_property
    def states(self) -> ExpectedStates | None:
        """The states that it reports; None if it reports none."""
        return expected_states(self.subject, self.case) if can_trace(self.subject) else None


@dataclass(frozen=True)
class Judgement:
    """The verdict on `agreement` and, unless that diverged, the one of a `companion` law."""

    agreement: Verdict
    companion: Verdict | None = None

    @property
    def verdict(self) -> Verdict:
        """The one that counts: the companion's if that diverged, else agreement's."""
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
) -> Judgement:
    """Judge `case` by agreement and then by `law`, one of LAWS.

    `subject` is one that its factory has checked. `leeway`, `trace` and `probe` are those of
    `kvfuzz.check`.
    """
    found = check_agreement(subject, case, name, leeway=leeway, trace=trace, probe=probe)
    return _with_companion(found, law, subject, case, name, leeway)


def judge_quickly(
    subject: Subject, case: Case, law: str = "agreement", known: KnownReference | None = None
) -> Judgement:
    """Judge `case` where it only matters whether something diverges: nothing is asked about what an
    agreement is worth. `known` is the reference, if it was found before."""
    if known is None:
        found = quick_check(subject, case)
    else:
        found = check_against(known.expected, subject, case)
    if law == "latent" and found.status != "agreed":
        return Judgement(found)
    return _with_companion(found, law, subject, case, "subject", 1.0, known)


def _with_companion(
    found: Verdict,
    law: str,
    subject: Subject,
    case: Case,
    name: str,
    leeway: float,
    known: KnownReference | None = None,
) -> Judgement:
    if found.diverged or law == "agreement":
        return Judgement(found)
    return Judgement(found, judge_by(law, subject, case, name, leeway, known))


def judge_by(
    law: str,
    subject: Subject,
    case: Case,
    name: str = "subject",
    leeway: float = 1.0,
    known: KnownReference | None = None,
) -> Verdict:
    """The verdict on `case` by `law` alone, one of LAWS. `subject` is one that its factory has
    checked."""
    if law == "agreement":
        return check_agreement(subject, case, name, leeway=leeway)
    if law == "latent":
        return check_latent(subject, case, known.states if known else None)
    return check_companion(law, subject, case, name, leeway, known.expected if known else None)


def check_law(
    law: str, subject: Subject, case: Case, name: str = "subject", leeway: float = 1.0
) -> Verdict:
    """The verdict on `case` by `law` alone, one of LAWS.

    What is allowed outside float64 is multiplied by `leeway`, that of a calibration. A case on
    which the law says nothing is discarded, and so is one whose changed input a path raises on.
    Raises UsageError for an unknown law, InvalidCase if the case does not fit the subject,
    InvalidSubject if the subject breaks the protocol; they call it `name`.
    """
    if law not in LAWS:
        raise UsageError(
            f"there is no law {law!r}{did_you_mean(law, LAWS)}: choose from {', '.join(LAWS)}"
        )
    require_fit(require_protocol(subject, name), case, name)
    return judge_by(law, subject, case, name, leeway)
