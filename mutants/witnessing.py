"""The witness of a kill: the smallest case that shows it, and where it shows first."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, replace

from hypothesis.errors import Flaky

from kvfuzz.case import Case
from kvfuzz.counterexample import counterexample
from kvfuzz.driving import drive, simplest
from kvfuzz.errors import KvfuzzError
from kvfuzz.injection import Faulty
from kvfuzz.locating import locate
from kvfuzz.location import Location
from kvfuzz.run import CachedPathRaised
from kvfuzz.subject import Factory
from kvfuzz.verdict import Verdict
from mutants.bench import Bench, expected_of, met_by
from mutants.judging import verdict_of
from mutants.limits import OutOfTime, time_limit
from mutants.mutant import ANY, LOCATED, Mutant
from mutants.result import Result
from mutants.subjects import mutated


def with_witness(bench: Bench, mutant: Mutant, result: Result) -> Result:
    """`result` with its kill shrunk, located and mapped; as it is, if there was no kill.

    Shrinking has the time of a mutant, and so has telling what it came to. Where the first runs
    out the witness is the case that killed; where the second does, or the mutant now raises,
    there is none, with the reason.
    """
    if result.state != "killed" or result.killed_by is None:
        return result
    factory, seconds = mutated(bench.factory, mutant), bench.campaign.seconds_per_mutant
    killing = bench.case(result.killed_by, mutant)
    case = _shrunk(bench, factory, mutant, result.killed_by) if bench.campaign.shrink else killing
    reason = None
    for candidate in (case,) if case == killing else (case, killing):
        try:
            with time_limit(seconds):
                return _told(bench, factory, mutant, candidate, result)
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


def _shrunk(bench: Bench, factory: Factory, mutant: Mutant, killed_by: int) -> Case:
    """The smallest killing case of the campaign, shrunk further; or as it is, if that takes too
    long.

    The round that it was drawn in is run again: its cases are passed over until this one is met,
    and from there on Hypothesis shrinks whatever kills. A case that raises does not kill. Of a
    fault that fits any subject that is left out.
    """
    plan, smallest = bench.campaign.plan, killed_by
    met = False
    try:
        with time_limit(bench.campaign.seconds_per_mutant) as check_time:
            smallest = _smallest(bench, mutant, killed_by, check_time)
            if mutant.subject == ANY:
                # Somebody's model: a hundred faults of it would take minutes to shrink in full.
                raise _Killed(bench.case(smallest, mutant))
            start, number = bench.campaign.cases[smallest], plan.round_of(smallest)

            def examine(case: Case) -> None:
                nonlocal met
                check_time()
                met = met or case == start
                fitted = mutant.fitted(case)
                if met and not expected_of(plan, case) and _kills(factory, mutant, fitted):
                    raise _Killed(fitted)

            drive(plan.space, plan.round_seed(number), plan.round_size(number), examine)
    except _Killed as killed:
        return _simplest(bench, factory, mutant, killed.case)
    except (OutOfTime, Flaky):
        pass
    return bench.case(smallest, mutant)


def _simplest(bench: Bench, factory: Factory, mutant: Mutant, case: Case) -> Case:
    """`case` without operations and arguments that it kills without, if there is time for that."""
    try:
        with time_limit(bench.campaign.seconds_per_mutant):
            plan = bench.campaign.plan

            def kills(tried: Case) -> bool:
                return not expected_of(plan, tried) and _kills(factory, mutant, tried)

            return simplest(case, kills, plan.space.offers)
    except OutOfTime:
        return case


def _smallest(bench: Bench, mutant: Mutant, killed_by: int, check_time: Callable[[], None]) -> int:
    """The index of the case with the fewest tokens that kills `mutant`: shrinking from there is
    many times faster than from the first that killed."""

    def size(index: int) -> tuple[int, int]:
        case = bench.campaign.cases[index]
        return case.batch * case.length, index

    for index in sorted(bench.indices, key=size):
        check_time()
        if index == killed_by:
            break
        verdict, error, _ = met_by(bench.prepared(index, mutant), mutant)
        if error is None and verdict is not None and verdict.diverged:
            return index
    return killed_by


def _kills(factory: Factory, mutant: Mutant, case: Case) -> bool:
    try:
        verdict = _verdict(factory, mutant, case)
    except KvfuzzError:
        return False
    return verdict.diverged and verdict.error is None


def _verdict(factory: Factory, mutant: Mutant, case: Case) -> Verdict:
    """The verdict on the faulty subject, by agreement and then by the mutant's law."""
    subject = factory.subject(case)
    assert isinstance(subject, Faulty)
    return verdict_of(mutant.law, subject, case)


def _told(bench: Bench, factory: Factory, mutant: Mutant, case: Case, result: Result) -> Result:
    """`result` with `case` as its witness: judged, and located and mapped if the paths differ."""
    verdict = _verdict(factory, mutant, case)
    location = locate(factory, case) if verdict.law in LOCATED else Location(None)
    first = location.first.site if location.first else None
    site = location.latent[0].site if location.latent else first
    device = bench.campaign.plan.options.device
    return replace(
        result,
        site=str(site) if site else None,
        witness=counterexample(factory.name, case, verdict, location.summary(), device).to_json(),
        map=tuple(asdict(cell) for cell in location.cells),
    )
