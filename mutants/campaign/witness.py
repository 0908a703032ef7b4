"""Finds the witness of a kill: shrinks the killing case, and locates the first divergence."""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, dataclass, replace

from hypothesis.errors import Flaky

from kvfuzz.case.case import Case
from kvfuzz.case.counterexample import make_counterexample
from kvfuzz.errors import KvfuzzError
from kvfuzz.localize.locate import locate
from kvfuzz.localize.location import Location
from kvfuzz.search.hypothesis_run import run_strategy
from kvfuzz.search.shrink import simplify
from kvfuzz.subjects.injection import Faulty
from kvfuzz.subjects.protocol import Factory
from kvfuzz.subjects.run import CachedPathRaised
from mutants.campaign.campaign import is_expected
from mutants.campaign.prepared_cases import PreparedCases
from mutants.campaign.result import Result
from mutants.campaign.run import judge_case, run_case
from mutants.campaign.time_limit import OutOfTime, time_limit
from mutants.library.mutant_scheme import with_mutant
from mutants.mutant import ANY, LOCATED, Mutant


def add_witness(
    prepared: PreparedCases,
    mutant: Mutant,
    result: Result,
    step: Callable[[], object] = lambda: None,
) -> Result:
    """Returns `result` with its kill shrunk, located and mapped; unchanged if there is no kill.

    Shrinking has the forward calls and the time of one mutant; when they run out, the witness is
    the smallest case so far. Judging and locating the witness has that time again; if it runs out,
    or the mutant raises, there is no witness, and the reason says so. `step` is called before each
    of these parts.
    """
    if result.state != "killed" or result.killed_by is None:
        return result
    factory, seconds = with_mutant(prepared.factory, mutant), prepared.campaign.limits.seconds
    killing = prepared.case(result.killed_by, mutant)
    case = killing
    if prepared.campaign.shrink:
        step()
        case = _shrink(prepared, factory, mutant, result.killed_by)
    reason = None
    for candidate in (case,) if case == killing else (case, killing):
        step()
        try:
            with time_limit(seconds):
                return _describe(prepared, factory, mutant, candidate, result)
        except OutOfTime:
            reason = reason or f"no witness: over {seconds:g} s"
        except (KvfuzzError, CachedPathRaised) as error:
            reason = reason or f"no witness: {error}"
    return replace(result, reason=reason)


class _Killed(Exception):
    """Carries a killing case through Hypothesis, which shrinks it."""

    def __init__(self, case: Case) -> None:
        super().__init__("killed")
        self.case = case


class _OutOfCalls(BaseException):
    """No forward calls are left. Not an Exception, because Hypothesis would shrink that."""


@dataclass
class _Shrinking:
    """The shrinking of one mutant: the `smallest` killing case so far, and the `calls` it took."""

    prepared: PreparedCases
    factory: Factory
    mutant: Mutant
    smallest: Case
    calls: int = 0

    def kills(self, case: Case) -> bool:
        """Returns whether `case` kills the mutant. Raises _OutOfCalls."""
        if self.calls >= self.prepared.campaign.limits.calls:
            raise _OutOfCalls
        if is_expected(self.prepared.campaign.plan, case):
            return False
        try:
            subject = _faulty(self.factory, case)
            try:
                verdict = judge_case(self.mutant.law, subject, case)
            finally:
                self.calls += subject.calls
        except KvfuzzError:
            return False
        killed = verdict.diverged and verdict.error is None
        if killed and _size(case) <= _size(self.smallest):
            self.smallest = case
        return killed


def _size(case: Case) -> tuple[int, int]:
    return _tokens(case), len(case.schedule)


def _shrink(prepared: PreparedCases, factory: Factory, mutant: Mutant, killed_by: int) -> Case:
    """Shrinks the smallest killing case of the campaign, within the calls and time of a mutant.

    Runs the round in which it was drawn again: passes over its cases up to this one, and from there
    Hypothesis shrinks whatever kills. A case that raises does not kill. A generic mutant is shrunk
    by simplification alone.
    """
    plan, reached = prepared.campaign.plan, False
    shrinking = _Shrinking(prepared, factory, mutant, prepared.case(killed_by, mutant))
    with (
        suppress(_OutOfCalls, OutOfTime),
        time_limit(prepared.campaign.limits.seconds) as check_time,
    ):
        index = _smallest(prepared, mutant, killed_by, check_time)
        start, number = prepared.campaign.cases[index], plan.round_of(index)

        def examine(case: Case) -> None:
            nonlocal reached
            check_time()
            reached = reached or case == start
            if reached and shrinking.kills(mutant.with_required_config(case)):
                raise _Killed(mutant.with_required_config(case))

        shrunk = prepared.case(index, mutant)
        # A user's model may be large: shrinking a hundred generic mutants in full takes minutes.
        if mutant.subject == ANY:
            return simplify(shrunk, shrinking.kills, plan.space.offers)
        try:
            run_strategy(plan.space, plan.round_seed(number), plan.round_size(number), examine)
        except _Killed as killed:
            shrunk = killed.case
        except Flaky:
            pass
        return simplify(shrunk, shrinking.kills, plan.space.offers)
    return shrinking.smallest


def _smallest(
    prepared: PreparedCases, mutant: Mutant, killed_by: int, check_time: Callable[[], None]
) -> int:
    """Returns the index of the killing case with the fewest tokens: shrinking from there is many
    times faster than from the first kill."""
    cases = prepared.campaign.cases
    for index in sorted(range(len(cases)), key=lambda index: (_tokens(cases[index]), index)):
        check_time()
        if index == killed_by or run_case(prepared.reference(index, mutant), mutant).killed:
            return index
    return killed_by


def _tokens(case: Case) -> int:
    return case.batch * case.length


def _faulty(factory: Factory, case: Case) -> Faulty:
    subject = factory.subject(case)
    assert isinstance(subject, Faulty)
    return subject


def _describe(
    prepared: PreparedCases, factory: Factory, mutant: Mutant, case: Case, result: Result
) -> Result:
    """Returns `result` with `case` as its witness: judged, and located and mapped if the paths
    differ."""
    verdict = judge_case(mutant.law, _faulty(factory, case), case)
    location = locate(factory, case) if verdict.law in LOCATED else Location(None)
    first = location.first.site if location.first else None
    site = location.latent[0].site if location.latent else first
    device = prepared.campaign.plan.options.device
    found = make_counterexample(factory.name, case, verdict, location.summary(), device).to_json()
    # A round trip through JSON, so that a result is the same from every process.
    witness, cells = json.loads(json.dumps([found, [asdict(cell) for cell in location.cells]]))
    return replace(result, site=str(site) if site else None, witness=witness, map=tuple(cells))
