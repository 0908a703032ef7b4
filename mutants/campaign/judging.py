"""What one case says of a faulty subject: by agreement and, where that is blind, by another law."""

from __future__ import annotations

from dataclasses import replace

import torch

from kvfuzz.case.case import Case
from kvfuzz.case.verdict import Verdict
from kvfuzz.oracle.agreement import check, check_against
from kvfuzz.search.judge import KnownReference, judge_by, judge_quickly
from kvfuzz.subjects.injection import Faulty
from mutants.library.mutant import VACUITY


def verdict_of(
    law: str, faulty: Faulty, case: Case, known: KnownReference | None = None
) -> Verdict:
    """The verdict on `case` by agreement and then by `law`, if that is another: the first of them
    that diverges, else the one by `law`.

    `known` is what the uncached path says without the fault, if that was found before.
    """
    companion = "agreement" if law == VACUITY else law
    found = judge_quickly(faulty, case, companion, None if faulty.both else known)
    if law == VACUITY and not found.agreement.diverged:
        return _vacuity(faulty, case)
    return found.companion or found.agreement


def clean_verdict(law: str, known: KnownReference) -> Verdict:
    """The verdict by `law` on the subject without a fault."""
    if law in ("agreement", VACUITY):
        return check_against(known.expected, known.subject, known.case)
    return judge_by(law, known.subject, known.case, known=known)


def _vacuity(faulty: Faulty, case: Case) -> Verdict:
    """A cache that the clean subject reads, and the faulty one might as well do without."""
    found = check(faulty, case, trace=False)
    if found.status == "vacuous" and check(faulty.subject, case, trace=False).status == "agreed":
        return replace(
            found, status="diverged", excess=torch.inf, law=VACUITY, finding=found.reason
        )
    return found
