"""The witness of a kill: the smallest case that shows it, and where it shows first."""

from __future__ import annotations

from dataclasses import asdict, replace
from typing import Any

from kvfuzz.agreement import check_against, reference
from kvfuzz.case import Case
from kvfuzz.counterexample import counterexample
from kvfuzz.errors import KvfuzzError
from kvfuzz.locating import difference_map, locate_precisely
from kvfuzz.rounds import ROUND, run_round
from kvfuzz.run import CachedPathRaised
from kvfuzz.subject import Factory
from mutants.bench import Bench
from mutants.limits import OutOfTime, time_limit
from mutants.mutant import Mutant
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
    killing = bench.campaign.cases[result.killed_by]
    case = _shrunk(bench, factory, result.killed_by) if bench.campaign.shrink else killing
    reason = None
    for candidate in (case,) if case == killing else (case, killing):
        try:
            with time_limit(seconds):
                return _told(bench, factory, candidate, result)
        except OutOfTime:
            reason = reason or f"no witness: over {seconds:g} s"
        except (KvfuzzError, CachedPathRaised) as error:
            reason = reason or f"no witness: {error}"
    return replace(result, reason=reason)


def _shrunk(bench: Bench, factory: Factory, killed_by: int) -> Case:
    """The case `killed_by` shrunk, or itself if that takes too long.

    The round that it was drawn in, run again on the mutant, meets the same first kill, and
    Hypothesis shrinks it. Cases before it that raised did not kill, and are passed over.
    """
    case, plan = bench.campaign.cases[killed_by], bench.campaign.plan
    try:
        with time_limit(bench.campaign.seconds_per_mutant) as check_time:

            def build(*arguments: Any) -> Any:
                check_time()
                return factory.build(*arguments)

            # Without the campaign's end: what is shrunk must not depend on when it began.
            found = run_round(
                replace(factory, build=build),
                replace(plan, until=None),
                killed_by // ROUND,
                errors_end=False,
            ).failure
    except OutOfTime:
        return case
    return found.case if found is not None else case


def _told(bench: Bench, factory: Factory, case: Case, result: Result) -> Result:
    """`result` with `case` as its witness: judged, located and mapped."""
    subject = factory.subject(case)
    verdict = check_against(reference(subject, case), subject, case)
    located = locate_precisely(factory, case)
    seen: dict[str, Any] | None = located.to_json() if located else None
    device = bench.campaign.plan.options.device
    return replace(
        result,
        site=str(located.site) if located else None,
        witness=counterexample(factory.name, case, verdict, seen, device).to_json(),
        map=tuple(asdict(cell) for cell in difference_map(subject, case)),
    )
