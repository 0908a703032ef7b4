"""What one case says of a faulty subject: by agreement and, where that is blind, by another law."""

from __future__ import annotations

from dataclasses import replace

import torch

from kvfuzz.agreement import check, check_against, quick_check
from kvfuzz.case import Case
from kvfuzz.injection import Faulty
from kvfuzz.laws import Known, check_law
from kvfuzz.verdict import Verdict
from mutants.mutant import LATENT, VACUITY


def verdict_of(law: str, faulty: Faulty, case: Case, known: Known | None = None) -> Verdict:
    """The verdict on `case` by agreement and then by `law`, if that is another: the first of them
    that diverges, else the one by `law`.

    `known` is what the uncached path says without the fault, if that was found before.
    """
    if faulty.both:
        known = None
    if known is None:
        found = quick_check(faulty, case)
    else:
        found = check_against(known.expected, faulty, case)
    if law == "agreement" or found.diverged:
        return found
    if law == LATENT and found.status != "agreed":
        return found
    return _vacuity(faulty, case) if law == VACUITY else check_law(law, faulty, case, known=known)


def clean_verdict(law: str, known: Known) -> Verdict:
    """The verdict by `law` on the subject without a fault."""
    if law in ("agreement", VACUITY):
        return check_against(known.expected, known.subject, known.case)
    return check_law(law, known.subject, known.case, known=known)


def _vacuity(faulty: Faulty, case: Case) -> Verdict:
    """A cache that the clean subject reads, and the faulty one might as well do without."""
    found = check(faulty, case, trace=False)
    if found.status == "vacuous" and check(faulty.subject, case, trace=False).status == "agreed":
        return replace(
            found, status="diverged", excess=torch.inf, law=VACUITY, finding=found.reason
        )
    return found
