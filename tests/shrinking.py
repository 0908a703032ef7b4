"""Shrinks a case by a condition in place of a subject."""

from kvfuzz.case.verdict import Verdict
from kvfuzz.search.shrink import shrink
from kvfuzz.search.strategies import Space


def smallest(case, fails, offers=()):
    """The smallest version of `case` that `fails`, for a subject with these `offers`."""
    space = Space(100, 20, (case.dtype,), offers=frozenset(offers))

    def judge(one):
        return Verdict("diverged" if fails(one) else "agreed")

    return shrink(case, Verdict("diverged"), judge, space).case
