"""Leads a case past a step that raises, so that what comes before and after it is run as well.

A path that raises shows no logits. A design that takes no chunks would hide in every case with a
chunk what else is wrong with it.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace

from kvfuzz.case.case import Case
from kvfuzz.case.verdict import Verdict
from kvfuzz.errors import InvalidCase
from kvfuzz.search.reductions import up_to_column, without_entries


def past_what_raises(case: Case, verdict: Verdict) -> Case | None:
    """Returns `case` with single tokens in place of the call that raised in `verdict`, or without
    the operation that did; up to there if that is not possible. None if nothing is left to run, or
    if no step raised."""
    if verdict.error_step is None:
        return None
    step = list(case.steps())[verdict.error_step]
    with suppress(InvalidCase):
        if step.operation is None and step.size > 1:
            before, after = case.schedule[: step.index], case.schedule[step.index + 1 :]
            return replace(case, schedule=(*before, *(1,) * step.size, *after))
        if not step.feeds:
            return without_entries(case, step.index, step.index + 1)
    fed = [one for one in case.steps() if one.feeds and one.index < step.index]
    return up_to_column(case, fed[-1].stop) if fed else None
