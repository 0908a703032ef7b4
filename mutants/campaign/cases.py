"""Draws the cases of a campaign, by the strategy of a hunt."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from kvfuzz.case.case import Case
from kvfuzz.case.verdict import Verdict
from kvfuzz.errors import UsageError
from kvfuzz.oracle.agreement import check_against
from kvfuzz.oracle.reference import find_reference
from kvfuzz.search.hypothesis_run import run_strategy
from kvfuzz.search.judge import KnownReference
from kvfuzz.search.known_divergences import Expectation
from kvfuzz.search.rounds import Plan, draw_cases, fresh_seed
from kvfuzz.search.strategies import space_of
from kvfuzz.subjects.loading import Options, load
from kvfuzz.subjects.protocol import Factory
from mutants.campaign.campaign import EXAMPLES, Campaign, is_expected
from mutants.campaign.prepared_cases import PreparedCases


def draw_campaign(
    factory: Factory,
    options: Options,
    examples: int | None,
    seed: int,
    expected: Sequence[Expectation] = (),
    **how: Any,
) -> Campaign:
    """Draws the cases of a campaign on `factory`: those of a clean hunt under `seed`, without the
    known divergences in `expected`. `how` are its fields `matrix`, `shrink` and `limits`. Raises
    UsageError if `examples` is below 1."""
    if examples is not None and examples < 1:
        raise UsageError(f"examples should be at least 1, got {examples}")
    plan = Plan(
        factory.name,
        options,
        space_of(factory),
        seed,
        examples or EXAMPLES,
        until=None,
        expected=tuple(expected),
    )
    cases = draw_cases(plan.space, plan.seed, plan.examples or EXAMPLES)
    return Campaign(plan, tuple(case for case in cases if not is_expected(plan, case)), **how)


def prepare_cases(
    subject: str,
    options: Options,
    examples: int | None,
    seed: int | None,
    expected: Sequence[Expectation] = (),
    **how: Any,
) -> PreparedCases:
    """Draws and prepares the cases of a campaign on `subject`, as `draw_campaign`; under a fresh
    seed if none is given."""
    factory = load(subject, options)
    seed = fresh_seed() if seed is None else seed
    return PreparedCases(factory, draw_campaign(factory, options, examples, seed, expected, **how))


def draw_decidable_cases(prepared: PreparedCases) -> PreparedCases:
    """Draws as many cases again, each of which can show a divergence; for subjects of unknown
    design.

    As in a hunt, a case that the clean subject refuses or that is too weak is drawn again, and so
    is a known divergence. A case on which the clean subject diverges stays, for the baseline to
    report.
    """
    plan = prepared.campaign.plan
    cases: list[Case] = []
    references: dict[tuple[int, str], KnownReference] = {}

    def examine(case: Case) -> Verdict | None:
        if is_expected(plan, case):
            return Verdict("discarded")
        subject = prepared.factory.subject(case)
        expected = find_reference(subject, case, leeway=plan.options.leeway(case.dtype))
        verdict = check_against(expected, subject, case)
        if not verdict.diverged and verdict.status != "agreed":
            return verdict
        references[prepared.key(len(cases), case)] = KnownReference(case, subject, expected)
        cases.append(case)
        return None

    index = 0
    while plan.round_size(index):
        seed, examples = plan.round_seed(index), plan.round_size(index)
        run_strategy(plan.space, seed, examples, examine, index=index)
        index += 1
    campaign = replace(prepared.campaign, cases=tuple(cases))
    return PreparedCases(prepared.factory, campaign, references)
