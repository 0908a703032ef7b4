"""Follows up what a hunt found: keeps the case of each cause in a file, shrinks it, locates it, and
checks that it diverges by itself."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from kvfuzz.case.case import Case
from kvfuzz.case.counterexample import Counterexample, make_counterexample
from kvfuzz.case.verdict import Verdict
from kvfuzz.errors import KvfuzzError
from kvfuzz.search.alone import with_what_ran_before
from kvfuzz.search.causes import Cause, find_cause
from kvfuzz.search.explain import Explanation, explain
from kvfuzz.search.rounds import Plan
from kvfuzz.search.second_cache import run_twice
from kvfuzz.search.shrink import Bound, Shrunk, fails_alike, judge_like, shrink
from kvfuzz.search.tally import Failure
from kvfuzz.subjects.module_state import changes, module_state
from kvfuzz.subjects.protocol import Factory


@dataclass(frozen=True)
class Finding:
    """The counterexample for one cause of divergence: the `failure`, shrunk as far as it was; its
    `explanation`; and the `path` of its file, if it was written. Of the hunt it was case `number`
    that first showed it, and `cases` of them did. A hunt that ends at the first divergence knows no
    `cause`."""

    failure: Shrunk
    counterexample: Counterexample
    path: Path | None = None
    explanation: Explanation | None = None
    number: int = 0
    cases: int = 1
    cause: Cause | None = None

    @property
    def raises(self) -> bool:
        """Whether a path raises, as a design does that refuses a call. Others are silent."""
        return self.failure.verdict.error is not None

    def to_json(self) -> dict[str, Any]:
        """Returns what a report of several findings says of each."""
        return {
            "cases": self.cases,
            "first_case": self.number,
            "law": self.failure.verdict.law,
            "places": list(self.cause.places) if self.cause else [],
            **self.details(),
        }

    def details(self) -> dict[str, Any]:
        """Returns what the report of a hunt says of its counterexample."""
        explanation = self.explanation
        paths = explanation.paths if explanation else None
        return {
            "paths": paths.sentence if paths else None,
            "agreeing": [list(group) for group in paths.groups] if paths else None,
            "counterexample": str(self.path) if self.path else None,
            "shrunk": self.failure.done,
            "shrink_passes": self.failure.passes,
            "repeatable": explanation.repeatable if explanation else None,
            "notes": list(explanation.notes) if explanation else [],
            "found": self.counterexample.to_json(),
        }


NO_DETAILS: dict[str, Any] = {
    "paths": None,
    "agreeing": None,
    "counterexample": None,
    "shrunk": None,
    "shrink_passes": None,
    "repeatable": None,
    "notes": [],
    "found": None,
}
"""These fields of a report belong to a hunt that found nothing."""


@dataclass
class Keeper:
    """Keeps the findings of a hunt by `plan`, in `folder` if there is one. `announce` is called
    with each as soon as its case is kept, before it is shrunk. `state` is that of all modules
    before the hunt."""

    factory: Factory
    plan: Plan
    folder: Path | None
    announce: Callable[[Finding], None] | None
    state: Mapping[str, Any]
    first: dict[int, Finding] = field(default_factory=dict)
    """By the number of its case, each finding as it was drawn."""
    there: frozenset[Path] = frozenset()
    """The files that were in the folder before, which stay."""
    owners: dict[Path, int] = field(default_factory=dict)
    """The finding that each file was written for: one case may break two laws."""

    def __post_init__(self) -> None:
        self.there = frozenset(self.folder.glob("*.json") if self.folder else ())

    def keep(self, failures: Sequence[Failure]) -> None:
        """Keeps, as it was drawn, the case of each cause that is new, and announces it."""
        for one in failures:
            if one.number in self.first:
                continue
            drawn = Shrunk(one.case, one.verdict, passes=0, done=False)
            found = Finding(drawn, self._counterexample(drawn, None))
            found = self._saved(replace(found, number=one.number, cause=one.cause))
            self.first[one.number] = found
            if self.announce is not None:
                self.announce(found)

    def follow_up(self, failures: Sequence[Failure]) -> tuple[Finding, ...]:
        """Shrinks and explains one failure after the other, and replaces its file. Returns the
        findings: the silent ones first, then those that raise. Raises KeyboardInterrupt, which
        names the file of the smallest case so far."""
        found: list[Finding] = []
        for failure in failures:
            self._follow_up(failure, found)
        left = {one.number for one in found}
        for number in self.first.keys() - left:  # one that turned out to have a known cause
            self._discard(self.first[number])
        return tuple(sorted(found, key=lambda one: one.raises))

    def _follow_up(self, failure: Failure, found: list[Finding]) -> None:
        """Adds the finding of `failure` to those that were `found`; where it turns out to have the
        cause of one of them, its cases to that one."""
        first, cause = self.first[failure.number], failure.cause
        start = in_one_program(self.factory, self.plan, first.failure)
        if cause is not None and start is not first.failure:
            cause = find_cause(self.factory, start.case, start.verdict, self.plan.locate)
            for index, one in enumerate(found):
                if one.cause is not None and one.cause.is_like(cause):
                    found[index] = replace(one, cases=one.cases + failure.cases)
                    return
        shrunk = shrink_failure(self.factory, self.plan, start, cause)
        explained = None
        if not shrunk.interrupted:
            explained = explain(self.factory, shrunk.case, shrunk.verdict, self.plan.locate)
        last = self._saved(
            replace(
                first,
                failure=shrunk,
                explanation=explained,
                counterexample=self._counterexample(shrunk, explained),
                cases=failure.cases,
                cause=cause,
            )
        )
        if first.path != last.path:
            self._discard(first)
        if shrunk.interrupted:
            kept = f": the smallest case so far is kept in {last.path}" if last.path else ""
            raise KeyboardInterrupt(f"interrupted{kept}")
        found.append(self._check_alone(last, failure.before))

    def _counterexample(self, shrunk: Shrunk, explanation: Explanation | None) -> Counterexample:
        location = explanation.location.summary() if explanation and explanation.location else None
        options = self.plan.options
        found = make_counterexample(
            self.factory.name, shrunk.case, shrunk.verdict, location, options.device, options.twin
        )
        return found if shrunk.done else found.unfinished(shrunk.tried)

    def _saved(self, finding: Finding) -> Finding:
        """Writes the file of `finding`, if there is a folder; never that of another cause."""
        if self.folder is None:
            return finding
        found, own = finding.counterexample, finding.number
        free = self.owners.get(found.path_in(self.folder), own) == own
        path = found.save(self.folder, "" if free else f"-{finding.failure.verdict.law}")
        self.owners[path] = own
        return replace(finding, path=path)

    def _discard(self, finding: Finding) -> None:
        """Removes the file of `finding`, which is not needed any more."""
        path = finding.path
        if path is None or path in self.there or self.owners[path] != finding.number:
            return
        path.unlink(missing_ok=True)

    def _check_alone(self, finding: Finding, history: Sequence[Case]) -> Finding:
        """Checks in a fresh process that the counterexample diverges by itself, if something
        outside the cases may have had a part: modules whose state has changed, or a fresh subject
        that does not diverge. Returns the finding, with a note and a file that say what has to run
        first."""
        if finding.path is None or finding.explanation is None:
            return finding
        changed = changes(self.state, module_state())
        if self.factory.name.startswith("<") or not (changed or not finding.explanation.repeatable):
            return finding
        found, note = with_what_ran_before(finding.counterexample, history)
        if note is None:
            return finding
        kept = f" ({', '.join(changed[:3])} kept something)" if changed else ""
        notes = (*finding.explanation.notes, f"{note}{kept}")
        explanation = replace(finding.explanation, notes=notes)
        return self._saved(replace(finding, counterexample=found, explanation=explanation))


def shrink_failure(
    factory: Factory, plan: Plan, failure: Shrunk, cause: Cause | None = None
) -> Shrunk:
    """Returns the simplest case found that fails in the same way as the one of `failure`, and by
    the same `cause`, if one is given. Ctrl-C ends the shrinking, and the smallest case so far
    counts."""

    def judge_again(case: Case) -> Verdict:
        leeway = plan.options.leeway(case.dtype)
        verdict = judge_like(failure.verdict, factory, case, leeway)
        if plan.expectation_for(case, verdict) is not None:
            return Verdict("discarded", reason="a known divergence")
        if cause is None or not fails_alike(verdict, failure.verdict):
            return verdict
        if not find_cause(factory, case, verdict, plan.locate).is_like(cause):
            return Verdict("discarded", reason="another cause")
        return verdict

    bound = Bound(plan.shrink_passes)
    stops = (KeyboardInterrupt,)
    return shrink(failure.case, failure.verdict, judge_again, plan.space, bound, stops)


def in_one_program(factory: Factory, plan: Plan, failure: Shrunk) -> Shrunk:
    """Returns the failure of a case that gave other logits when it ran again, as the divergence of
    a program that runs it twice, if that diverges: it can be located."""
    twice = run_twice(failure.case) if failure.verdict.law == "repeatability" else None
    if twice is None:
        return failure
    agreement = Verdict("diverged")
    try:
        verdict = judge_like(agreement, factory, twice, plan.options.leeway(twice.dtype))
    except KvfuzzError:
        return failure
    known = plan.expectation_for(twice, verdict) is not None
    if not fails_alike(verdict, agreement) or known:
        return failure
    return Shrunk(twice, verdict, failure.passes, failure.done)
