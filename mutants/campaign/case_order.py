"""The order in which a mutant runs the cases: those most like its witness first.

Whether some case kills a mutant does not depend on the order; how many run before the kill does.
In the order of drawing, a mutant of the built-in decoder runs ten cases on average; in this order
little more than one.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from kvfuzz.case.case import Case
from kvfuzz.case.features import features_of
from mutants.mutant import Mutant

ROOM = 4
"""The best case has twice the tokens of the witness and ROOM more, so that the fault can act."""


SETTINGS = ("cache", "mix")
"""The settings of a decoder by which cases are compared."""

Trait = tuple[str, str]
"""A property of a case: a group and a name in it, as in `element`, `crop`."""


@dataclass(frozen=True, slots=True)
class CaseTraits:
    """The properties by which cases are compared: traits of the program, kinds of steps in order,
    size of the token table, and traits of the settings."""

    traits: frozenset[Trait]
    kinds: tuple[str, ...]
    rows: int
    columns: int
    settings: frozenset[Trait]

    @classmethod
    def of(cls, case: Case) -> CaseTraits:
        kinds = tuple(step.kind for step in case.steps())
        settings = _config_traits(case.config)
        return cls(_program_traits(case), kinds, case.batch, case.length, settings)

    def lacks(self, wanted: CaseTraits) -> int:
        """Returns how many of the `wanted` properties are missing."""
        smaller = (self.rows < wanted.rows) + (self.columns < wanted.columns)
        missing = len(wanted.kinds) - _count_in_order(wanted.kinds, self.kinds)
        return len(wanted.traits - self.traits) + missing + smaller


def order_cases(mutant: Mutant, cases: Sequence[Case], traits: tuple[CaseTraits, ...]) -> list[int]:
    """Returns the indices of `cases`: first those that lack the least of the witness of `mutant`,
    then those with the least besides it. Without a witness, returns them in the given order."""
    witness = mutant.witness
    if witness is None:
        return list(range(len(cases)))
    wanted = CaseTraits.of(witness)
    distances = _distances(wanted, traits)
    if wanted.settings:
        found = {has.settings for has in traits}
        other = {one: len(wanted.settings - _required_traits(mutant, one)) for one in found}
        distances = tuple(
            (lacking + other[has.settings], *rest)
            for has, (lacking, *rest) in zip(traits, distances, strict=True)
        )
    return [index for *_, index in sorted(distances)]


@functools.lru_cache(maxsize=128)
def _distances(wanted: CaseTraits, traits: tuple[CaseTraits, ...]) -> tuple[tuple[int, ...], ...]:
    """Returns for each case how much it lacks, what it has besides, how far it is from the best
    length, and its index. Cached, because many mutants have similar witnesses."""
    best = 2 * wanted.columns + ROOM
    return tuple(
        (has.lacks(wanted), len(has.traits - wanted.traits), abs(has.columns - best), index)
        for index, has in enumerate(traits)
    )


def _count_in_order(wanted: Sequence[str], kinds: Sequence[str]) -> int:
    """Returns how many of the first `wanted` steps are among `kinds`, in this order."""
    steps = iter(kinds)
    return next((count for count, kind in enumerate(wanted) if kind not in steps), len(wanted))


def _required_traits(mutant: Mutant, settings: frozenset[Trait]) -> frozenset[Trait]:
    """Returns the traits of `settings` with those that `mutant` needs."""
    values = dict(settings)
    for name, fit in mutant.needs.items():
        if name in SETTINGS and values.get(name, "") not in map(str, fit):
            values[name] = str(fit[0])
    return frozenset(values.items())


def _program_traits(case: Case) -> frozenset[Trait]:
    """Returns the traits of the program of `case`: its features, and how tokens enter the cache
    (`one-shot prefill` of several tokens, `incremental` in several steps, or both)."""
    fed = [step for step in case.steps() if step.feeds]
    paths = {
        "one-shot prefill": any(step.kind == "prefill" and step.size > 1 for step in fed),
        "incremental": len(fed) > 1,
    }
    return frozenset(
        {
            *(("element", word) for word in features_of(case)),
            *(("path", word) for word, has in paths.items() if has),
        }
    )


def _config_traits(config: Mapping[str, Any]) -> frozenset[Trait]:
    """Returns the traits of a decoder of this `config`."""
    return frozenset((name, str(config[name])) for name in SETTINGS if name in config)
