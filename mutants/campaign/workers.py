"""Judges mutants in worker processes, which a fault may kill, hang or fill."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import replace
from functools import partial
from typing import Any

from kvfuzz.search.pool import Ended, Pool, Say, Work
from mutants.campaign.campaign import Campaign, read_campaign
from mutants.campaign.judge import judge_mutant, skip_mutant
from mutants.campaign.prepared_cases import PreparedCases
from mutants.campaign.result import MutantOutcome, Result
from mutants.library.registry import find


def judge_in_processes(
    campaign: Campaign, names: Sequence[str], workers: int, begin: Callable[[str], bool]
) -> Iterator[MutantOutcome]:
    """Judges the mutants called `names` in `workers` processes; yields each outcome when known.
    `begin` is called with each name before it runs, and returns whether it may.

    A dead process does not prove the mutant guilty, because an earlier mutant may have left
    something behind. So that mutant is judged once more in a fresh process, and blamed if the same
    happens there; likewise if the subject was changed after it. If the clean subject is unsound, no
    other mutant begins. Raises Inconclusive if a process cannot be started.
    """
    waiting, again, limits = deque(names), set[str](), campaign.limits
    start, size = partial(_start, campaign.to_json()), min(workers, len(waiting))
    pool = Pool(start, size, "no mutant can be judged", limits.seconds, limits.megabytes)
    with closing(pool):
        while waiting or pool.busy:
            for worker in pool.idle:
                # A mutant that is judged again waits for a fresh process, which is on its way.
                for name in [n for n in waiting if n not in again or not worker.used]:
                    waiting.remove(name)
                    if name in again or begin(name):
                        worker.give(name)
                        break
                    yield skip_mutant(find(name))
            for ended in pool.receive():
                outcome = _outcome_of(ended)
                name = outcome.result.id
                spoiled = outcome.result.state == "crashed" or outcome.changed is not None
                if spoiled and name not in again:
                    again.add(name)
                    waiting.appendleft(name)
                    continue
                if outcome.unsound is not None:
                    waiting.clear()
                yield _blame(outcome)


def _outcome_of(ended: Ended) -> MutantOutcome:
    """Returns the outcome of a mutant. If its process was lost, that is the result that was known
    by then, or else how it was lost."""
    said = ended.said
    if not ended.lost:
        return MutantOutcome.from_json(ended.result)
    if "known" in said:
        known = Result.from_json(said["known"])
        lacks = known.state == "killed" and known.witness is None
        return MutantOutcome(replace(known, reason=f"no witness: {ended.why}") if lacks else known)
    where = f" on case {said['case']}" if "case" in said else ""
    operator = find(ended.item).operator
    return MutantOutcome(Result(ended.item, operator, ended.lost, reason=ended.why + where))


def _blame(outcome: MutantOutcome) -> MutantOutcome:
    """Returns the outcome to report. A mutant that left the subject changed is invalid. The
    change is gone with its process, so other results are right."""
    if outcome.changed is None:
        return outcome
    result = outcome.result
    return MutantOutcome(Result(result.id, result.operator, "invalid", reason=outcome.changed))


def _start(campaign: dict[str, Any]) -> Work:
    """Prepares a process for `campaign`."""
    _discard_output()
    prepared = PreparedCases(*read_campaign(campaign))

    def judge(name: str, say: Say) -> dict[str, Any]:
        outcome = judge_mutant(prepared, find(name), say)
        if outcome.changed is not None:
            say(spoiled=True)
        return outcome.to_json()

    return judge


def _discard_output() -> None:
    """Discards what a fault prints, which is not part of a report."""
    with open(os.devnull, "w") as nothing:
        for standard in (1, 2):
            os.dup2(nothing.fileno(), standard)
