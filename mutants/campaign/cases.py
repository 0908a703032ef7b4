"""The cases that somebody's model is scored on: those that can tell whether it agrees."""

from __future__ import annotations

from dataclasses import replace

from kvfuzz.case.case import Case
from kvfuzz.case.verdict import Verdict
from kvfuzz.oracle.agreement import check_against
from kvfuzz.oracle.reference import reference
from kvfuzz.search.hypothesis_run import run_strategy
from kvfuzz.search.judge import KnownReference
from mutants.campaign.bench import Bench
from mutants.campaign.campaign import expected_of


def telling(bench: Bench) -> Bench:
    """`bench` with cases that are no waste: as in a hunt, what the clean subject refuses, what is
    too weak to tell, and what is expected to diverge is drawn again, as often as cases were asked
    for. One that diverges is kept, for the baseline to report."""
    plan = bench.campaign.plan
    cases: list[Case] = []
    ready: dict[tuple[int, str], KnownReference] = {}

    def examine(case: Case) -> Verdict | None:
        if expected_of(plan, case):
            return Verdict("discarded")
        subject = bench.factory.subject(case)
        expected = reference(subject, case, leeway=plan.options.leeway(case.dtype))
        verdict = check_against(expected, subject, case)
        if not verdict.diverged and verdict.status != "agreed":
            return verdict
        ready[bench.key(len(cases), case)] = KnownReference(case, subject, expected)
        cases.append(case)
        return None

    index = 0
    while plan.round_size(index):
        run_strategy(plan.space, plan.round_seed(index), plan.round_size(index), examine)
        index += 1
    return Bench(bench.factory, replace(bench.campaign, cases=tuple(cases)), ready)
