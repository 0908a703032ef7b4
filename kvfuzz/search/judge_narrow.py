"""Judges a case in a narrow dtype, as a user would run it: in bfloat16 or float16, with float32 as
the default dtype and nothing promoted.

Such a run shows a cache that was made without a dtype, which the other two lanes cannot: in float32
it fits, and in float64 the default dtype follows. It shows no fault of the logic that they do not.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from kvfuzz.case.case import Case
from kvfuzz.case.verdict import Verdict
from kvfuzz.errors import KvfuzzError
from kvfuzz.oracle.agreement import check_agreement
from kvfuzz.subjects.protocol import Factory

FIRST_NARROW = 2
"""After this many cases of a round, the next ones that agree and read their cache are run in the
narrow dtypes too, one in each. (The first example of Hypothesis is the same in all rounds.)"""
OTHERS = 2
"""How many other cases have to differ too. Rounding to so few digits turns choices, as of an
expert, which the noise of one case may not show; a fault of the dtype depends on no weights."""


def judge_narrow(factory: Factory, case: Case, dtype: str, leeway: float) -> tuple[Case, Verdict]:
    """Returns `case` in `dtype`, and the verdict on it. It is discarded where the uncached path
    does not run, or where the same program with other weights agrees."""
    narrow = replace(case, dtype=dtype)
    verdict = _judge(factory, narrow, leeway)
    if verdict.first is not None:
        for other in _others(factory, narrow):
            if not _judge(factory, other, leeway).diverged:
                return narrow, Verdict("discarded", reason="other weights agree")
    return narrow, verdict


def _judge(factory: Factory, case: Case, leeway: float) -> Verdict:
    try:
        subject = factory.subject(case)
        # Casts to a coarser dtype, and caches that nobody reads, are found in the other lanes.
        name = factory.name
        found = check_agreement(subject, case, name, leeway=leeway, trace=False, probe=False)
    except KvfuzzError as error:
        return Verdict("discarded", reason=str(error))
    verdict = found.verdict
    if verdict.error is not None and verdict.error_step is None:
        return Verdict("discarded", reason=verdict.error)
    return verdict


def _others(factory: Factory, case: Case) -> Iterator[Case]:
    """Yields the same program with other weights or, where there are none, other tokens."""
    size = factory.limits().vocab_size
    for number in range(1, 1 + OTHERS):
        if factory.seeded:
            yield replace(case, seed=case.seed + number)
        else:
            rows = tuple(tuple((t + number) % size for t in row) for row in case.tokens)
            yield replace(case, tokens=rows)
