"""Says what a case needs of a subject beyond the three methods."""

from __future__ import annotations

from kvfuzz.case.case import Case

LENGTHS = "lengths"
"""The optional argument of `cached` that says how many tokens each row takes."""
PARENTS = "parents"
"""The optional argument of `cached` that makes of its tokens a tree of candidates."""
NEEDS = {
    "ragged": LENGTHS,
    "tree": PARENTS,
    "crop": "crop",
    "rollback": "rollback",
    "join": "join",
    "fork": "copy",
    "restore": "save",
    "reset": "reset",
} | dict.fromkeys(("reorder", "select", "repeat"), "reorder")
"""The optional method, or argument of `cached`, that each kind of step needs."""
TWO_CACHES = ("fork", "switch", "join")
"""The kinds of step that need two caches at once."""


def needs(case: Case) -> frozenset[str]:
    """Returns the optional arguments and methods that `case` needs."""
    if case.is_simple:
        return frozenset()
    words = {
        word for step in case.steps() for word in (step.kind, getattr(step.operation, "word", ""))
    }
    return frozenset(case.arguments) | {NEEDS[word] for word in words if word in NEEDS}


def uses_two_caches(case: Case) -> bool:
    """Whether `case` needs two caches at once: it copies one, joins two, or goes back to an earlier
    one."""
    return not case.is_plain and any(step.kind in TWO_CACHES for step in case.steps())
