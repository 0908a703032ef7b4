"""Which of a decoder's paths agree with each other, on a case that diverged.

Any of them can be the wrong one. Three are told apart: uncached; cached, in one call for all
tokens; and cached, by the steps of the case.
"""

from __future__ import annotations

from dataclasses import replace

from kvfuzz.agreement import compare_paths, reference
from kvfuzz.case import Case
from kvfuzz.compare import compare
from kvfuzz.run import CachedPathRaised, run_cached
from kvfuzz.subject import Subject


def which_agree(subject: Subject, case: Case) -> str | None:
    """One sentence on which paths agree, and which to suspect; None where that cannot be told
    (a path raised, or the case is one call already)."""
    if len(case.schedule) == 1 or not case.is_plain:
        return None
    expected = reference(subject, case)
    tolerance = expected.tolerance
    if tolerance is None:
        return None
    try:
        stepwise = run_cached(subject, case)
        at_once = run_cached(subject, replace(case, schedule=(case.length,)))
    except CachedPathRaised:
        return None
    with_uncached = not bool(compare_paths(at_once, expected, case).diverges.any())
    with_stepwise = not bool(compare(at_once, stepwise, tolerance).diverges.any())
    if with_uncached:
        return "cached in one call agrees with uncached: suspect what the later steps do"
    if with_stepwise:
        return (
            "cached in one call agrees with cached step by step, and neither with uncached: "
            "suspect the uncached path, or what both cached paths share"
        )
    return "uncached, cached in one call and cached step by step all differ"
