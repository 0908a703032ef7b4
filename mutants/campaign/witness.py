"""The witness of a kill: the smallest case that shows it, and where it shows first."""

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
    """`result` with its kill shrunk, located and mapped; as it is, if there was no kill.

    Shrinking has the forward calls and the time of a mutant, and telling what it came to has the
    time again; `step` is called before each of them. Where the calls run out the witness is the
    smallest case yet. Where the time for telling does, or the mutant now raises, there is none,
    with the reason.
    """
    if result.state != "killed" or result.killed_by is None:
        return result
    factory, seconds = with_mutant(prepared.factory, mutant), prepared.campaign.limits.seconds
    killing = prepared.case(result.killed_by, mutant)
    case = killing
    if prepared.campaign.shrink:
        step()
        case = _shrunk(prepared, factory, mutant, result.killed_by)
    reason = None
    for candidate in (case,) if case == killing else (case, killing):
        step()
        try:
            with time_limit(seconds):
                return _told(prepared, factory, mutant, candidate, result)
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
    """The forward calls are used up. Not an Exception, which Hypothesis would shrink."""


@dataclass
class _Shrinking:
    """One mutant's shrinking: the `smallest` case that kills it yet, and the `calls` it took."""

    prepared: PreparedCases
    factory: Factory
    mutant: Mutant
    smallest: Case
    calls: int = 0

    def kills(self, case: Case) -> bool:
        """Whether `case` kills the mutant. Raises _OutOfCalls."""
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


def _shrunk(prepared: PreparedCases, factory: Factory, mutant: Mutant, killed_by: int) -> Case:
    """The smallest killing case of the campaign, shrunk further, as far as the calls and the time
    of a mutant reach.

    The round that it was drawn in is run again: its cases are passed over until this one is met,
    and from there on Hypothesis shrinks whatever kills. A case that raises does not kill. Of a
    fault that fits any subject that is left out.
    """
    plan, met = prepared.campaign.plan, False
    shrinking = _Shrinking(prepared, factory, mutant, prepared.case(killed_by, mutant))
    with (
        suppress(_OutOfCalls, OutOfTime),
        time_limit(prepared.campaign.limits.seconds) as check_time,
    ):
        index = _smallest(prepared, mutant, killed_by, check_time)
        start, number = prepared.campaign.cases[index], plan.round_of(index)

        def examine(case: Case) -> None:
            nonlocal met
            check_time()
            met = met or case == start
            if met and shrinking.kills(mutant.with_required_config(case)):
                raise _Killed(mutant.with_required_config(case))

        shrunk = prepared.case(index, mutant)
        # Somebody's model: a hundred faults of it would take minutes to shrink in full.
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
    """The index of the case with the fewest tokens that kills `mutant`: shrinking from there is
    many times faster than from the first that killed."""
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


def _told(
    prepared: PreparedCases, factory: Factory, mutant: Mutant, case: Case, result: Result
) -> Result:
    """`result` with `case` as its witness: judged, and located and mapped if the paths differ."""
    verdict = judge_case(mutant.law, _faulty(factory, case), case)
    location = locate(factory, case) if verdict.law in LOCATED else Location(None)
    first = location.first.site if location.first else None
    site = location.latent[0].site if location.latent else first
    device = prepared.campaign.plan.options.device
    told = make_counterexample(factory.name, case, verdict, location.summary(), device).to_json()
    # As after a journey as JSON, so that a result is the same whichever process it comes from.
    witness, cells = json.loads(json.dumps([told, [asdict(cell) for cell in location.cells]]))
    return replace(result, site=str(site) if site else None, witness=witness, map=tuple(cells))
