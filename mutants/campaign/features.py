"""What the schedules are worth: which mutants would survive if no case had this or that in it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from kvfuzz.case.case import Case
from kvfuzz.case.features import ELEMENTS, elements
from kvfuzz.oracle.laws import LAWS
from mutants.campaign.result import Result, Score
from mutants.library.mutant import VACUITY
from mutants.library.registry import everything

SETTINGS = ("cache", "mix")
PATHS = ("one-shot prefill", "incremental")
"""A call of several tokens on an empty cache; and a cache that is called more than once. A case may
have both."""

Trait = tuple[str, str]
"""What a case has, or a kill: a group and a name in it, as in `element`, `crop`."""


@dataclass(frozen=True)
class Worth:
    """Of one trait: how many `cases` have it, how many mutants are `killed` by a case with it, and
    the ids of those that `only` such cases kill: they survive where it is left out."""

    group: str
    name: str
    cases: int
    killed: int
    only: tuple[str, ...]

    def to_json(self) -> dict[str, Any]:
        return {"cases": self.cases, "killed": self.killed, "only": list(self.only)}


def by_schedule(score: Score) -> tuple[Worth, ...]:
    """What each trait is worth in `score`, for which every case was run on every mutant."""
    had = [traits_of(case) | {("law", "agreement")} for case in score.cases]
    kills = {result.id: list(_kills(score, result)) for result in score.results}
    kills = {name: traits for name, traits in kills.items() if traits}
    found = {
        trait
        for traits in (*had, *(set().union(*each) for each in kills.values()))
        for trait in traits
    }
    laws = {trait for trait in found if trait[0] == "law"}
    return tuple(
        Worth(
            *trait,
            cases=len(had) if trait in laws else sum(trait in traits for traits in had),
            killed=sum(any(trait in traits for traits in each) for each in kills.values()),
            only=tuple(name for name, each in kills.items() if all(trait in t for t in each)),
        )
        for trait in _all_traits()
        if trait in found or trait[0] == "element"
    )


def schedule_json(score: Score) -> dict[str, dict[str, Any]]:
    """`by_schedule`, by group and name."""
    found: dict[str, dict[str, Any]] = {}
    for worth in by_schedule(score):
        found.setdefault(worth.group, {})[worth.name] = worth.to_json()
    return found


def _kills(score: Score, result: Result) -> Iterator[frozenset[Trait]]:
    """The traits of each kill of `result`: those of the case, as it was fitted to the mutant, and
    the law that it broke."""
    known = everything().get(result.id)
    for index, law in zip(result.kills, result.laws, strict=True):
        case = score.cases[index]
        yield traits_of(known.fitted(case) if known else case) | {("law", law)}


def program_traits(case: Case) -> frozenset[Trait]:
    """What the program of `case` has."""
    return frozenset(
        {
            *(("element", word) for word in elements(case)),
            *(("path", word) for word in _paths(case)),
        }
    )


def config_traits(config: Mapping[str, Any]) -> frozenset[Trait]:
    """What a decoder of this `config` has."""
    return frozenset((name, str(config[name])) for name in SETTINGS if name in config)


def traits_of(case: Case) -> frozenset[Trait]:
    """What `case` has."""
    return program_traits(case) | config_traits(case.config)


def _paths(case: Case) -> Iterator[str]:
    steps = [step for step in case.steps() if step.feeds]
    if any(step.kind == "prefill" and step.size > 1 for step in steps):
        yield PATHS[0]
    if len(steps) > 1:
        yield PATHS[1]


def _all_traits() -> list[Trait]:
    """Every trait that there may be, in the order in which they are told."""
    from kvfuzz.subjects.zoo.config import CACHES, MIXES

    groups = {
        "element": ELEMENTS,
        "path": PATHS,
        "law": (*LAWS, VACUITY),
        "cache": CACHES,
        "mix": MIXES,
    }
    return [(group, name) for group, names in groups.items() for name in names]
