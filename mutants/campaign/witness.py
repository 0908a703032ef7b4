"""Finds the witness of a kill: makes the killing case smaller, and locates the first divergence.

By default only what the verdict shows to be needless is cut off, which takes a run or two. With
`shrink` the case is shrunk in full, which takes about fifty.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from typing import Any

from kvfuzz.case.case import Case
from kvfuzz.case.counterexample import make_counterexample
from kvfuzz.case.verdict import Verdict
from kvfuzz.errors import KvfuzzError, UsageError
from kvfuzz.localize.locate import locate
from kvfuzz.localize.location import Location
from kvfuzz.search.judge import KnownReference
from kvfuzz.search.shrink import Bound, Shrunk, cut_versions, fails_alike, shrink
from kvfuzz.search.strategies import space_of
from kvfuzz.subjects.injection import Faulty
from kvfuzz.subjects.loading import load
from kvfuzz.subjects.protocol import Factory
from kvfuzz.subjects.run import CachedPathRaised
from mutants.campaign.campaign import is_expected
from mutants.campaign.prepared_cases import PreparedCases
from mutants.campaign.result import Result
from mutants.campaign.run import judge_case, run_case
from mutants.campaign.time_limit import OutOfTime, time_limit
from mutants.library.mutant_scheme import with_mutant
from mutants.mutant import LOCATED, Mutant


def add_witness(
    prepared: PreparedCases,
    mutant: Mutant,
    result: Result,
    step: Callable[[], object] = lambda: None,
) -> Result:
    """Returns `result` with its kill cut or shrunk, located and mapped; unchanged if there is no
    kill.

    Shrinking has the forward calls and the time of one mutant; when they run out, the witness is
    the smallest case so far. Judging a case, and locating it, each has that time again. If it runs
    out, or the mutant raises, there is no witness, and the reason says so. `step` is called before
    each of these parts.
    """
    if result.state != "killed" or result.killed_by is None:
        return result
    known = prepared.reference(result.killed_by, mutant)
    search = _Search(prepared, mutant, _mutated(prepared, mutant, known), known, step)
    reason = None
    try:
        for candidate in search.witnesses():
            try:
                return search.describe(candidate, result)
            except (OutOfTime, KvfuzzError, CachedPathRaised) as error:
                reason = reason or search.why_none(error)
    except (OutOfTime, KvfuzzError) as error:
        reason = reason or search.why_none(error)
    return replace(result, reason=reason)


@dataclass
class _Search:
    """The search for a witness of `mutant`, which `known` kills. `factory` builds the mutant."""

    prepared: PreparedCases
    mutant: Mutant
    factory: Factory
    known: KnownReference
    step: Callable[[], object]

    @property
    def seconds(self) -> float:
        return self.prepared.campaign.limits.seconds

    def witnesses(self) -> Iterator[Shrunk]:
        """Yields the smallest witness, and then the killing case itself. Raises OutOfTime."""
        self.step()
        with time_limit(self.seconds):
            subject = _faulty(self.factory, self.known.case)
            verdict = judge_case(self.mutant.law, subject, self.known.case, self.known)
        killing = _as_drawn(self.known.case, verdict)
        smaller = self._shrink(killing) if self.prepared.campaign.shrink else self._cut(killing)
        if smaller.case != killing.case:
            yield smaller
        yield killing

    def _cut(self, killing: Shrunk) -> Shrunk:
        self.step()
        with suppress(OutOfTime), time_limit(self.seconds):
            for case in cut_versions(killing.case, killing.verdict):
                with suppress(KvfuzzError):
                    verdict = self._judge(case)
                    if fails_alike(verdict, killing.verdict):
                        return _as_drawn(case, verdict)
        return killing

    def _shrink(self, killing: Shrunk) -> Shrunk:
        self.step()
        space = replace(self.prepared.campaign.plan.space, choices=self.factory.choices)
        bound, found = Bound(self.prepared.campaign.limits.calls), None
        with suppress(OutOfTime), time_limit(self.seconds):
            found = shrink(
                killing.case, killing.verdict, self._judge, space, bound, stops=(OutOfTime,)
            )
        return found or killing

    def _judge(self, case: Case) -> Verdict:
        if is_expected(self.prepared.campaign.plan, case):
            return Verdict("discarded", reason="a known divergence")
        return judge_case(self.mutant.law, _faulty(self.factory, case), case)

    def describe(self, witness: Shrunk, result: Result) -> Result:
        """Returns `result` with `witness`, located and mapped if the paths differ. Raises OutOfTime
        and what the mutant raises."""
        case, verdict, factory = witness.case, witness.verdict, self.factory
        self.step()
        with time_limit(self.seconds):
            location = locate(factory, case) if verdict.law in LOCATED else Location(None)
        first = location.first.site if location.first else None
        site = location.latent[0].site if location.latent else first
        options = self.prepared.campaign.plan.options
        found = make_counterexample(
            factory.name, case, verdict, location.summary(), options.device, options.twin
        )
        found = found if witness.done else found.unfinished(witness.tried)
        # A round trip through JSON, so that a result is the same from every process.
        told = found.to_json(), [asdict(cell) for cell in location.cells]
        data, cells = json.loads(json.dumps(told))
        return replace(
            result,
            site=str(site) if site else None,
            witness=data,
            map=tuple(cells),
            declared_kills=self._declared_kills(),
        )

    def _declared_kills(self) -> bool | None:
        """Returns whether the declared witness kills the mutant too; None if there is none, or if
        it cannot run in this campaign. Only a drawn case decides the state."""
        if self.mutant.witness is None:
            return None
        self.step()
        with suppress(OutOfTime, KvfuzzError), time_limit(self.seconds):
            case = self.mutant.with_required_config(self.mutant.witness)
            return run_case(self.prepared.declared(case), self.mutant).killed
        return None

    def why_none(self, error: BaseException) -> str:
        """Returns why there is no witness."""
        late = isinstance(error, OutOfTime)
        return f"no witness: over {self.seconds:g} s" if late else f"no witness: {error}"


def shrink_declared(mutant: Mutant, bound: Bound | None = None) -> Shrunk:
    """Returns the witness that `mutant` declares, shrunk in full on the subject of `mutant`. Raises
    UsageError if it declares none."""
    if mutant.witness is None:
        raise UsageError(f"the mutant {mutant.id} declares no witness that could be shrunk")
    factory = with_mutant(load(mutant.subject), mutant)

    def judged(case: Case) -> Verdict:
        return judge_case(mutant.law, _faulty(factory, case), case)

    case = mutant.with_required_config(mutant.witness)
    return shrink(case, judged(case), judged, space_of(factory), bound)


def _as_drawn(case: Case, verdict: Verdict) -> Shrunk:
    """Returns a case that was cut at most."""
    return Shrunk(case, verdict, passes=0, done=False)


def _mutated(prepared: PreparedCases, mutant: Mutant, known: KnownReference) -> Factory:
    """Returns the factory of the mutated subjects. It builds no clean subject again that is the one
    of `known`."""
    factory, case = with_mutant(prepared.factory, mutant), known.case

    def build(seed: int, dtype: str, config: Mapping[str, Any]) -> Faulty:
        if (seed, dtype, config) == (case.seed, case.dtype, case.config):
            return mutant.into(known.subject, dtype)
        built: Faulty = factory.build(seed, dtype, config)
        return built

    return replace(factory, build=build)


def _faulty(factory: Factory, case: Case) -> Faulty:
    subject = factory.subject(case)
    assert isinstance(subject, Faulty)
    return subject
