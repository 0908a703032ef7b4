"""Runs a mutant on prepared cases, one case at a time, and decides its state.

Only a divergence kills: by agreement or, where agreement sees nothing, by the law that the mutant
declares. A mutant that raises is loud, unless another case kills it.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace

import torch

from kvfuzz.case.case import Case
from kvfuzz.case.verdict import Verdict
from kvfuzz.errors import InvalidSubject, printable
from kvfuzz.oracle.agreement import check
from kvfuzz.search.judge import KnownReference, judge_quickly
from kvfuzz.subjects.injection import Faulty
from mutants.campaign.prepared_cases import PreparedCases
from mutants.campaign.result import Result
from mutants.campaign.time_limit import OutOfTime, time_limit
from mutants.equivalence.exhaustive import why_unconfirmed
from mutants.mutant import ANY, VACUITY, Mutant


def run_mutant(
    prepared: PreparedCases, mutant: Mutant, begin: Callable[[int], object] = lambda _: None
) -> Result:
    """Runs `mutant` on the cases until one kills it, or on all in a matrix campaign.

    Deterministic across processes. Calls `begin` with each case number before the case runs.
    Raises Unsound if the unmutated subject diverges on a case that kills.
    """
    started = time.time()
    tally, limits = _Tally(), prepared.campaign.limits
    state, reason = None, None
    try:
        with time_limit(limits.seconds) as check_time:
            mutant = mutant.resolve(prepared.factory, prepared.campaign.cases)
            for index in () if mutant.inapplicable else prepared.order(mutant):
                check_time()
                if tally.calls >= limits.calls:
                    state, reason = "timed_out", f"no kill in {limits.calls} forward calls"
                    break
                begin(index)
                tally.add(index, run_case(known := prepared.reference(index, mutant), mutant))
                if tally.kills.get(index, "agreement") not in ("agreement", VACUITY):
                    # The baseline judged the clean subject by agreement, not by this law.
                    prepared.require_clean(known, index, tally.kills[index])
                if tally.kills and not prepared.campaign.matrix:
                    break
    except InvalidSubject as error:
        state, reason = "invalid", str(error)
    except OutOfTime:
        state, reason = "timed_out", f"over {limits.seconds:g} s"
    if tally.kills:
        state, reason = _state_if_killed(mutant, tally)
    elif state is None:
        state, reason = _state_if_not_killed(mutant, tally)
    return tally.result(mutant, state, reason, time.time() - started)


@dataclass(frozen=True)
class CaseOutcome:
    """What one case showed of a mutant: the `verdict`, or the `error` that the mutant raised.

    `reached` counts the calls of the replaced functions, `calls` the forward calls.
    """

    verdict: Verdict | None
    error: str | None
    reached: int
    calls: int

    @property
    def killed(self) -> bool:
        return self.error is None and self.verdict is not None and self.verdict.diverged


def run_case(known: KnownReference, mutant: Mutant) -> CaseOutcome:
    """Runs `mutant` on one case. Raises InvalidSubject if it cannot be injected at all."""
    faulty = mutant.into(known.subject, known.case.dtype)
    verdict = None
    try:
        verdict = judge_case(mutant.law, faulty, known.case, known)
        error = verdict.error
    except InvalidSubject as refused:
        error = str(refused)
    return CaseOutcome(verdict, error, faulty.reached, faulty.calls)


def judge_case(
    law: str, faulty: Faulty, case: Case, known: KnownReference | None = None
) -> Verdict:
    """Judges a mutated subject by agreement and then by `law`; returns the verdict that diverged,
    else the one by `law`. `known` is the reference of the clean subject, if it was computed."""
    companion = "agreement" if law == VACUITY else law
    # A fault in both paths changes the reference as well.
    found = judge_quickly(faulty, case, companion, None if faulty.both else known)
    if law == VACUITY and not found.agreement.diverged:
        return _judge_vacuity(faulty, case)
    return found.companion or found.agreement


def check_unchanged(prepared: PreparedCases, mutant: Mutant, result: Result) -> str | None:
    """Judges the clean subject again after `mutant`, on the case that killed it or else on the last
    that it ran. Returns None if it still agrees, and otherwise why later results would be wrong."""
    index = result.killed_by
    if index is None:
        index = prepared.order(mutant)[max(result.ran - 1, 0)]
    try:
        with time_limit(prepared.seconds_for_clean):
            known = prepared.reference(index, mutant)
            changed = known.check(known.subject).verdict.diverged
    # The baseline raised nothing on this case, so the mutant caused whatever is raised now.
    except (Exception, SystemExit, OutOfTime):
        changed = True
    if changed:
        return f"mutant {result.id} left the subject changed, so later results would be wrong"
    return None


def _judge_vacuity(faulty: Faulty, case: Case) -> Verdict:
    """Diverges if the mutated subject ignores its cache and the clean subject reads it."""
    found = check(faulty, case, trace=False)
    if found.status == "vacuous" and check(faulty.subject, case, trace=False).status == "agreed":
        return replace(
            found, status="diverged", excess=torch.inf, law=VACUITY, finding=found.reason
        )
    return found


@dataclass
class _Tally:
    """Sums over the cases that a mutant ran. `kills` has the law that each killing case breaks."""

    ran: int = 0
    reached: int = 0
    calls: int = 0
    excess: float = 0.0
    kills: dict[int, str] = field(default_factory=dict)
    errors: list[str] = field(default_factory=list)

    def add(self, index: int, outcome: CaseOutcome) -> None:
        self.ran += 1
        self.reached += outcome.reached
        self.calls += outcome.calls
        if outcome.error is not None:
            self.errors.append(outcome.error)
        elif outcome.killed:
            assert outcome.verdict is not None
            self.kills[index] = outcome.verdict.law
            self.excess = self.excess or outcome.verdict.excess

    def result(self, mutant: Mutant, state: str, reason: str | None, seconds: float) -> Result:
        return Result(
            id=mutant.id,
            operator=mutant.operator,
            state=state,
            declared_site=str(mutant.site) if mutant.site else None,
            killed_by=next(iter(self.kills), None),
            kills=tuple(self.kills),
            laws=tuple(self.kills.values()),
            ran=self.ran,
            raised=len(self.errors),
            reached=self.reached,
            calls=self.calls,
            excess=self.excess,
            reason=reason and printable(reason),
            seconds=seconds,
        )


def _state_if_killed(mutant: Mutant, tally: _Tally) -> tuple[str, str | None]:
    # A generic mutant's equivalence was measured on some programs; a kill shows they were too few.
    if mutant.equivalent is not None and mutant.subject != ANY:
        killer = next(iter(tally.kills))
        return "invalid", f"declared equivalent, but case {killer} kills it"
    return "killed", None


def _state_if_not_killed(mutant: Mutant, tally: _Tally) -> tuple[str, str | None]:
    if mutant.inapplicable is not None:
        return "inapplicable", mutant.inapplicable
    if tally.errors:
        return "loud", tally.errors[0]
    measured = mutant.subject == ANY and mutant.equivalent is not None
    if not tally.reached and not measured:
        advice = f"; to catch it {mutant.advice}" if mutant.advice else ""
        return "unreached", f"no case ran the code that it replaces{advice}"
    if mutant.equivalent is not None:
        doubt = None if measured else why_unconfirmed(mutant)
        return ("invalid", doubt) if doubt else ("equivalent", mutant.equivalent)
    return "survived", mutant.advice or None
