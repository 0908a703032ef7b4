"""What one case says of a faulty subject: by agreement and, where that is blind, by another law."""

from __future__ import annotations

from dataclasses import replace

import torch

from kvfuzz.agreement import Reference, check, check_against
from kvfuzz.case import Case
from kvfuzz.injection import Faulty
from kvfuzz.laws import check_law
from kvfuzz.subject import Subject
from kvfuzz.verdict import Verdict
from mutants.mutant import LATENT, VACUITY


def verdict_of(law: str, faulty: Faulty, case: Case, expected: Reference | None = None) -> Verdict:
    """The verdict on `case` by agreement and then by `law`, if that is another: the first of them
    that diverges, else the one by `law`.

    `expected` is what the uncached path says, where it is the clean one and known already.
    """
    if expected is None or faulty.both:
        found = check(faulty, case, trace=False, probe=False)
    else:
        found = check_against(expected, faulty, case)
    if law == "agreement" or found.diverged:
        return found
    if law == LATENT and found.status != "agreed":
        return found
    return _vacuity(faulty, case) if law == VACUITY else check_law(law, faulty, case)


def clean_verdict(law: str, subject: Subject, case: Case, expected: Reference) -> Verdict:
    """The verdict by `law` on a subject without a fault."""
    if law in ("agreement", VACUITY):
        return check_against(expected, subject, case)
    return check_law(law, subject, case)


def _vacuity(faulty: Faulty, case: Case) -> Verdict:
    """A cache that the clean subject reads, and the faulty one might as well do without."""
    found = check(faulty, case, trace=False)
    if found.status == "vacuous" and check(faulty.subject, case, trace=False).status == "agreed":
        return replace(
            found, status="diverged", excess=torch.inf, law=VACUITY, finding=found.reason
        )
    return found
