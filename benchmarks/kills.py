"""How many cases the search needs to kill a mutant, against a naive search."""

from __future__ import annotations

import random
import statistics
from collections.abc import Sequence
from dataclasses import replace

import torch

from benchmarks.row import Measurement
from kvfuzz.case.case import Case
from kvfuzz.subjects.loading import Options
from mutants.campaign.cases import prepare_cases
from mutants.campaign.prepared_cases import PreparedCases
from mutants.campaign.result import Result
from mutants.campaign.run import run_mutant
from mutants.library.registry import select

MOST = 50
"""The naive search gives up after this many cases, and counts as one more: to its median, that is
no advantage."""


def cases_to_kill(repeats: int) -> Measurement:
    """The cases that a mutant of the library needs until its first kill, the median over all of
    them: those of the search, against uniform tokens and one token a call. One seed a repeat.

    Both sides have models, settings, dtypes and sizes in common and run in the order of drawing. (A
    campaign runs those first that resemble the witness, which says nothing about the search.)
    """
    torch.set_num_threads(1)
    scored = [mutant for mutant in select("zoo")[0] if not mutant.equivalent]
    mutants = [replace(mutant, witness=None) for mutant in scored]
    pairs, lost, missed = [], set[str](), []
    for seed in range(repeats):
        prepared = prepare_cases("zoo", Options(), None, seed, shrink=False)
        ours = [run_mutant(prepared, mutant) for mutant in mutants]
        other = _naive(prepared)
        naive = [run_mutant(other, mutant) for mutant in mutants]
        lost |= {result.id for result in ours if result.state != "killed"}
        missed.append(sum(result.state != "killed" for result in naive))
        pairs.append((_median(ours), _median(naive)))
    evidence = (
        f"{len(mutants) - len(lost)} of {len(mutants)} killed under each seed; the naive search "
        f"misses {statistics.median(missed):g} in {MOST} cases"
    )
    return Measurement(tuple(pairs), evidence, f"not killed: {sorted(lost)}" if lost else None)


def _naive(prepared: PreparedCases) -> PreparedCases:
    """Returns the first cases of a campaign with uniform tokens, fed one by one."""
    vocab_size = prepared.campaign.plan.space.vocab_size
    cases = tuple(_decode_only(case, vocab_size) for case in prepared.campaign.cases[:MOST])
    return PreparedCases(prepared.factory, replace(prepared.campaign, cases=cases))


def _decode_only(case: Case, vocab_size: int) -> Case:
    draw = random.Random(repr(case))
    rows = tuple(tuple(draw.randrange(vocab_size) for _ in row) for row in case.tokens)
    return replace(case, tokens=rows, schedule=(1,) * case.length, given=())


def _median(results: Sequence[Result]) -> float:
    """Returns the median number of cases up to the kill."""
    needed = [result.ran if result.state == "killed" else MOST + 1 for result in results]
    return float(statistics.median(needed))
