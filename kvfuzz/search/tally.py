"""Counts what the cases of a hunt showed, and keeps those that diverged."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field, replace
from functools import reduce
from typing import Any

from kvfuzz.case.case import Case
from kvfuzz.case.features import features_of, longest_read
from kvfuzz.case.verdict import Verdict
from kvfuzz.search.causes import Cause
from kvfuzz.search.judge import Judgement

MOST_REASONS = 3
MOST_CAUSES = 20
"""A hunt that keeps going keeps a case for each of so many causes; it counts those of further
ones."""


@dataclass(frozen=True)
class Failure:
    """A case that diverged, as it was drawn. Of the hunt, it was case `number`, after those
    `before`. A hunt that keeps going counts the `cases` that diverged by the same `cause`."""

    case: Case
    verdict: Verdict
    number: int = 0
    before: tuple[Case, ...] = ()
    cause: Cause | None = None
    cases: int = 1

    def to_json(self) -> dict[str, Any]:
        return {
            "case": self.case.to_json(),
            "verdict": asdict(self.verdict),
            "number": self.number,
            "before": [case.to_json() for case in self.before],
            "cause": self.cause and asdict(self.cause),
            "cases": self.cases,
        }

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Failure:
        """Returns the failure that `to_json` gave, after a round trip through JSON."""
        return cls(
            Case.from_json(data["case"]),
            Verdict.from_json(data["verdict"]),
            data["number"],
            tuple(map(Case.from_json, data["before"])),
            data["cause"] and Cause(**{**data["cause"], "places": tuple(data["cause"]["places"])}),
            data["cases"],
        )


def _alike(one: Failure, other: Failure) -> bool:
    return one.cause is not None and other.cause is not None and one.cause.is_like(other.cause)


def _joined(first: Failure, more: Failure) -> Failure:
    """Returns the `first` failure of a cause with the count of `more`, which has the same cause."""
    assert first.cause is not None
    assert more.cause is not None
    return replace(first, cause=first.cause.joined(more.cause), cases=first.cases + more.cases)


@dataclass
class Tally:
    """Counts over the cases of one or several rounds, up to the first case that diverged, or in a
    hunt that keeps going over all of them.

    `positions` and `weak_positions` count positions, the others cases: `discarded`, `weak`,
    `vacuous` and `prefixwise` ones by their verdict; in `read` those that agreed and read their
    cache, which is the evidence (only a second step reads a cache); in `exercised`, by feature and
    by companion law, those that agreed; in `vacuous_laws`, those in which it could not have failed;
    in `expected`, by index in the plan, those that diverged as expected. `longest` is the longest
    row of a case that agreed, up to a call that read it. `narrow` counts those that ran in a narrow
    dtype too, and `not_narrow` says why others could not be judged there. `failures` has the first
    case of each cause, and `further` counts the cases of causes beyond MOST_CAUSES.
    """

    cases: int = 0
    positions: int = 0
    weak_positions: int = 0
    discarded: int = 0
    weak: int = 0
    vacuous: int = 0
    read: int = 0
    prefixwise: int = 0
    longest: int = 0
    worst_excess: float = 0.0
    reasons: tuple[str, ...] = ()
    bases: tuple[str, ...] = ()
    exercised: Counter[str] = field(default_factory=Counter)
    vacuous_laws: Counter[str] = field(default_factory=Counter)
    expected: Counter[int] = field(default_factory=Counter)
    narrow: Counter[str] = field(default_factory=Counter)
    not_narrow: tuple[str, ...] = ()
    failures: tuple[Failure, ...] = ()
    further: int = 0

    def note(self, failure: Failure) -> None:
        """Counts a case that diverged: as one of a cause that is known, or as the first of it.
        Causes that turn out to be the same, since this is like both, are counted as the first."""
        known = [one for one in self.failures if _alike(one, failure)]
        if not known and len(self.failures) == MOST_CAUSES:
            self.further += failure.cases
            return
        joined = reduce(_joined, (*known, failure))
        rest = [one for one in self.failures if one not in known]
        self.failures = tuple(sorted((*rest, joined), key=lambda one: one.number))

    def add(self, case: Case, judgement: Judgement) -> None:
        """Counts a case by its judgement."""
        verdict, companion = judgement.verdict, judgement.companion
        agreed = verdict.status == "agreed"
        if agreed:
            self.exercised.update(features_of(case))
            self.longest = max(self.longest, longest_read(case))
        if companion is not None and companion.status == "agreed":
            self.exercised[companion.law] += 1
        if companion is not None and companion.status == "vacuous":
            self.vacuous_laws[companion.law] += 1
        self.cases += 1
        self.positions += verdict.positions if agreed or verdict.diverged else 0
        self.weak_positions += verdict.weak_positions
        self.discarded += verdict.status == "discarded"
        self.weak += verdict.status == "weak"
        self.vacuous += verdict.status == "vacuous"
        self.read += agreed and case.reads_cache
        self.prefixwise += verdict.prefixwise
        if verdict.basis != "least":
            self.worst_excess = max(self.worst_excess, verdict.excess)
        self.reasons = distinct((*self.reasons, verdict.reason))[:MOST_REASONS]
        self.bases = distinct((*self.bases, verdict.basis))

    def __add__(self, more: Tally) -> Tally:
        """Returns the tally of these rounds and the ones that follow."""
        counts = "cases positions weak_positions discarded weak vacuous read prefixwise further"
        total = Tally(
            **{name: getattr(self, name) + getattr(more, name) for name in counts.split()},
            longest=max(self.longest, more.longest),
            worst_excess=max(self.worst_excess, more.worst_excess),
            reasons=distinct((*self.reasons, *more.reasons))[:MOST_REASONS],
            bases=distinct((*self.bases, *more.bases)),
            exercised=self.exercised + more.exercised,
            vacuous_laws=self.vacuous_laws + more.vacuous_laws,
            expected=self.expected + more.expected,
            narrow=self.narrow + more.narrow,
            not_narrow=distinct((*self.not_narrow, *more.not_narrow))[:MOST_REASONS],
            failures=self.failures,
        )
        for failure in more.failures:
            total.note(replace(failure, number=self.cases + failure.number))
        return total

    def to_json(self) -> dict[str, Any]:
        return {**vars(self), "failures": [failure.to_json() for failure in self.failures]}

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Tally:
        """Returns the tally that `to_json` gave, after a round trip through JSON."""
        made = cls(**data)
        made.reasons, made.bases = tuple(made.reasons), tuple(made.bases)
        made.narrow, made.not_narrow = Counter(made.narrow), tuple(made.not_narrow)
        made.exercised, made.vacuous_laws = Counter(made.exercised), Counter(made.vacuous_laws)
        made.expected = Counter({int(index): n for index, n in made.expected.items()})
        made.failures = tuple(map(Failure.from_json, data["failures"]))
        return made


def distinct(words: Iterable[str | None]) -> tuple[str, ...]:
    """Returns the words, each once, in the order in which they first come."""
    return tuple(dict.fromkeys(word for word in words if word is not None))
