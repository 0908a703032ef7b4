"""Looks for the part of a second cache in a divergence.

A case that needs two caches at once shows a fault, or a model that holds one by design. A case that
gives other logits when it runs again may also diverge as a program of two caches one after the
other, and that can be located.
"""

from __future__ import annotations

from dataclasses import replace

from kvfuzz.case.case import Case, Step
from kvfuzz.case.schedule import Entry, New
from kvfuzz.case.verdict import Verdict
from kvfuzz.errors import KvfuzzError
from kvfuzz.search.judge import judge_by
from kvfuzz.subjects.protocol import ONE_CACHE, Factory

NOTE = (
    "the same calls agree if each cache is used up before the next one is made, so a second cache "
    "changes the first: if the model holds one cache at a time by design, declare "
    f"{ONE_CACHE} = True (docs/subjects.md)"
)


def note_of_second_cache(factory: Factory, case: Case, verdict: Verdict) -> str | None:
    """Returns NOTE if the diverged `case` goes back to an earlier cache, and agrees by the law of
    `verdict` with its caches one after the other; else None."""
    apart = one_after_the_other(case)
    if apart is None:
        return None
    try:
        found = judge_by(verdict.law, factory.subject(apart), apart, factory.name)
    except KvfuzzError:
        return None
    return NOTE if found.status == "agreed" else None


def run_twice(case: Case) -> Case | None:
    """Returns a case that runs the plain `case` twice, on one cache and then on a new one; None for
    any other case."""
    if not case.is_plain:
        return None
    schedule = (*case.schedule, New(case.batch), *case.schedule)
    return replace(case, tokens=tuple(row + row for row in case.tokens), schedule=schedule)


def one_after_the_other(case: Case) -> Case | None:
    """Returns `case` with all steps of a cache together, those of the first cache first; None if it
    goes back to no earlier cache, copies one or joins two. A cache that is fed nothing is left
    out."""
    steps = list(case.steps())
    kinds = {step.kind for step in steps}
    if "switch" not in kinds or kinds & {"fork", "join"}:
        return None
    schedule: list[Entry] = []
    columns: list[int] = []
    for number in range(1 + max(step.cache for step in steps)):
        own = [step for step in steps if step.cache == number and step.kind != "switch"]
        if not any(step.feeds for step in own):
            continue
        schedule += _entries(case, own, begun=bool(schedule))
        columns += [column for step in own for column in range(step.start, step.stop)]
    tokens = tuple(tuple(row[column] for column in columns) for row in case.tokens)
    return replace(case, tokens=tokens, schedule=tuple(schedule))


def _entries(case: Case, steps: list[Step], begun: bool) -> list[Entry]:
    """Returns the schedule entries of the `steps` of one cache. It takes a New of its own if other
    caches have `begun`, or if it has fewer rows than the case."""
    entries = [case.schedule[step.index] for step in steps if step.kind != "new"]
    rows = len(steps[0].after if steps[0].kind == "new" else steps[0].before)
    return [New(rows), *entries] if begun or rows != case.batch else entries
