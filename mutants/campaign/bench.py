"""The bench: the cases of a campaign, made ready once per process, and mutants judged on them."""

from __future__ import annotations

import shlex
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property

from kvfuzz.case.case import Case
from kvfuzz.case.verdict import Verdict
from kvfuzz.errors import InvalidSubject, printable
from kvfuzz.oracle.agreement import check_against
from kvfuzz.oracle.reference import reference
from kvfuzz.search.judge import KnownReference
from kvfuzz.search.rounds import Plan
from kvfuzz.subjects.protocol import Factory
from mutants.campaign.campaign import Campaign
from mutants.campaign.judging import clean_verdict, verdict_of
from mutants.campaign.ordering import Likeness, likely_first
from mutants.campaign.result import Result
from mutants.campaign.time_limit import OutOfTime, time_limit
from mutants.equivalence.exhaustive import unconfirmed
from mutants.library.mutant import ANY, VACUITY, Mutant

SECONDS_FOR_CLEAN = 60.0
"""The least time that the clean subject has for one case: not a mutant's, which may be tiny."""


@dataclass(frozen=True)
class Bench:
    """The cases of `campaign`, as they fit a mutant, each made ready when it is first met."""

    factory: Factory
    campaign: Campaign
    ready: dict[tuple[int, str], KnownReference] = field(default_factory=dict)
    proven: dict[tuple[int, str, str], int] = field(default_factory=dict)

    def case(self, index: int, mutant: Mutant | None = None) -> Case:
        """Case number `index`, with the settings that `mutant` needs."""
        drawn = self.campaign.cases[index]
        return drawn if mutant is None else mutant.fitted(drawn)

    @property
    def seconds_for_clean(self) -> float:
        """The time that the clean subject has for one case."""
        return max(SECONDS_FOR_CLEAN, self.campaign.limits.seconds)

    def order(self, mutant: Mutant) -> list[int]:
        """The indices of the cases in the order in which `mutant` meets them: as they were drawn
        if it meets all."""
        if self.campaign.matrix:
            return list(range(len(self.campaign.cases)))
        return likely_first(mutant, self.campaign.cases, self._likenesses)

    @cached_property
    def _likenesses(self) -> tuple[Likeness, ...]:
        return tuple(Likeness.of(case) for case in self.campaign.cases)

    def key(self, index: int, case: Case) -> tuple[int, str]:
        """What tells `case`, number `index` with some settings, among those made ready."""
        return index, repr(sorted(case.config.items()))

    def prepared(self, index: int, mutant: Mutant | None = None) -> KnownReference:
        """Case number `index` as `mutant` needs it. Raises Unsound if the clean subject diverges on
        a case that was not drawn like that."""
        case = self.case(index, mutant)
        key = self.key(index, case)
        if key not in self.ready:
            subject = self.factory.subject(case)
            leeway = self.campaign.plan.options.leeway(case.dtype)
            item = KnownReference(case, subject, reference(subject, case, leeway=leeway))
            self.ready[key] = item
            if case != self.campaign.cases[index]:
                self.require_clean(item, index, "agreement")
        return self.ready[key]

    def require_clean(self, item: KnownReference, index: int, law: str) -> int:
        """The number of positions compared on the unmutated subject, by `law`, once for all
        mutants. Raises Unsound if it diverges."""
        key = (*self.key(index, item.case), law)
        if key not in self.proven:
            self.proven[key] = self._clean(item, index, law)
        return self.proven[key]

    def _clean(self, item: KnownReference, index: int, law: str) -> int:
        verdict = clean_verdict(law, item)
        if verdict.diverged:
            drawn, name = self.campaign.cases[index].config, self.factory.name
            other = {n: v for n, v in item.case.config.items() if drawn.get(n, _NONE) != v}
            fitted = f" with {', '.join(f'{n} {v}' for n, v in other.items())}" if other else ""
            raise Unsound(
                f"the unmutated {name} diverges on case {index}{fitted}: "
                f"run {_hunt(self.campaign.plan)}, or leave out what is expected to diverge by "
                "--expected FILE"
            )
        return verdict.positions


_NONE = object()


def _hunt(plan: Plan) -> str:
    """The command that hunts on the cases of `plan`."""
    asked = f"kvfuzz fuzz {shlex.quote(plan.subject)} --seed {plan.seed} --examples {plan.examples}"
    options = plan.options
    asked += f" --dtype {options.dtype}" if options.dtype else ""
    asked += f" --device {options.device}" if options.device != "cpu" else ""
    return asked + (" and the same settings" if options.config else "")


class Unsound(Exception):
    """There can be no score: the unmutated subject breaks the law that a mutant is judged by."""


def baseline(bench: Bench) -> str | None:
    """Why there can be no score, judged on the unmutated subject; None if there can.

    On the cases as they were drawn: one that is fitted to a mutant is judged when it is made.
    """
    rows = 0
    for index in range(len(bench.campaign.cases)):
        try:
            with time_limit(bench.seconds_for_clean):
                rows += bench.require_clean(bench.prepared(index), index, "agreement")
        except Unsound as unsound:
            return str(unsound)
        except OutOfTime:
            return (
                f"the unmutated {bench.factory.name} takes over {bench.seconds_for_clean:g} s for "
                f"case {index}"
            )
    return None if rows else f"nothing could be compared on {bench.factory.name}"


def judged(bench: Bench, mutant: Mutant, begin: Callable[[int], object] = lambda _: None) -> Result:
    """What becomes of `mutant` on the cases of `bench`: the same in every process. `begin` is
    called with the index of each case before it is run.

    Only a difference of logits kills, or what breaks the law that the mutant declares. A fault that
    raises, or breaks the protocol, is loud, unless another case kills it. Raises Unsound.
    """
    started = time.time()
    tally, limits = _Tally(), bench.campaign.limits
    state, reason = None, None
    try:
        with time_limit(limits.seconds) as check_time:
            mutant = mutant.settled(bench.factory, bench.campaign.cases)
            for index in () if mutant.inapplicable else bench.order(mutant):
                check_time()
                if tally.calls >= limits.calls:
                    state, reason = "timed_out", f"no kill in {limits.calls} forward calls"
                    break
                begin(index)
                item = bench.prepared(index, mutant)
                tally.add(index, met_by(item, mutant))
                if tally.kills.get(index, "agreement") not in ("agreement", VACUITY):
                    bench.require_clean(item, index, tally.kills[index])
                if tally.kills and not bench.campaign.matrix:
                    break
    except InvalidSubject as error:
        state, reason = "invalid", str(error)
    except OutOfTime:
        state, reason = "timed_out", f"over {limits.seconds:g} s"
    if tally.kills:
        state, reason = "killed", None
        # What was measured on the subject was measured on too little of it, if a case tells.
        if mutant.equivalent is not None and mutant.subject != ANY:
            killer = next(iter(tally.kills))
            state, reason = "invalid", f"declared equivalent, but case {killer} kills it"
    if state is None:
        state, reason = _unkilled(mutant, tally)
    return Result(
        id=mutant.id,
        operator=mutant.operator,
        state=state,
        declared_site=str(mutant.site) if mutant.site else None,
        killed_by=next(iter(tally.kills), None),
        kills=tuple(tally.kills),
        laws=tuple(tally.kills.values()),
        ran=tally.ran,
        raised=len(tally.errors),
        reached=tally.reached,
        calls=tally.calls,
        excess=tally.excess,
        reason=reason and printable(reason),
        seconds=time.time() - started,
    )


def left_changed(bench: Bench, mutant: Mutant, result: Result) -> str | None:
    """Why nothing after `mutant` in this process, of which `result` is what became, means anything:
    the clean subject no longer agrees on the case that killed it, or else the last that it met;
    None if it does."""
    index = result.killed_by
    if index is None:
        index = bench.order(mutant)[max(result.ran - 1, 0)]
    try:
        with time_limit(bench.seconds_for_clean):
            item = bench.prepared(index, mutant)
            changed = check_against(item.expected, item.subject, item.case).diverged
    # Whatever it raises now it did not raise for the baseline.
    except (Exception, SystemExit, OutOfTime):
        changed = True
    if changed:
        return f"mutant {result.id} left the subject changed: what follows it would mean nothing"
    return None


@dataclass
class _Tally:
    ran: int = 0
    reached: int = 0
    calls: int = 0
    excess: float = 0.0
    kills: dict[int, str] = field(default_factory=dict)
    errors: list[str] = field(default_factory=list)

    def add(self, index: int, met: Met) -> None:
        self.ran += 1
        self.reached += met.reached
        self.calls += met.calls
        if met.error is not None:
            self.errors.append(met.error)
        elif met.killed:
            assert met.verdict is not None
            self.kills[index] = met.verdict.law
            self.excess = self.excess or met.verdict.excess


@dataclass(frozen=True)
class Met:
    """What one case said of a mutant, or the `error` that it made; how often its targets were
    `reached`, and how many forward `calls` it took."""

    verdict: Verdict | None
    error: str | None
    reached: int
    calls: int

    @property
    def killed(self) -> bool:
        return self.error is None and self.verdict is not None and self.verdict.diverged


def met_by(item: KnownReference, mutant: Mutant) -> Met:
    """What the case of `item` says of `mutant`.

    Raises InvalidSubject if the fault cannot be put into the subject at all.
    """
    faulty = mutant.into(item.subject, item.case.dtype)
    verdict = None
    try:
        verdict = verdict_of(mutant.law, faulty, item.case, item)
        error = verdict.error
    except InvalidSubject as refused:
        error = str(refused)
    return Met(verdict, error, faulty.reached, faulty.calls)


def _unkilled(mutant: Mutant, tally: _Tally) -> tuple[str, str | None]:
    if mutant.inapplicable is not None:
        return "inapplicable", mutant.inapplicable
    if tally.errors:
        return "loud", tally.errors[0]
    measured = mutant.subject == ANY and mutant.equivalent is not None
    if not tally.reached and not measured:
        return "unreached", _with_advice("no case ran the code that it replaces", mutant)
    if mutant.equivalent is not None:
        if measured:
            return "equivalent", mutant.equivalent
        doubt = unconfirmed(mutant)
        return ("invalid", doubt) if doubt else ("equivalent", mutant.equivalent)
    return "survived", mutant.advice or None


def _with_advice(reason: str, mutant: Mutant) -> str:
    return f"{reason}; to catch it {mutant.advice}" if mutant.advice else reason
