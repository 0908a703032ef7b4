"""In which order a mutant meets the cases: those first that are most like the case that kills it.

Which cases there are is the fuzzer's business, and whether one of them kills does not depend on the
order. How many are run until then does: in the order in which they were drawn a mutant of the zoo
meets ten, in this one hardly more than one.
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
"""A case is best about twice as long as the witness, and this much: long enough that the fault has
something to work on."""


SETTINGS = ("cache", "mix")
"""The settings of a decoder by which cases are compared."""

Trait = tuple[str, str]
"""A property of a case: a group and a name in it, as in `element`, `crop`."""


@dataclass(frozen=True, slots=True)
class CaseTraits:
    """By what cases are likened to each other: the traits of their programs, the kinds of their
    steps in order, and the size of their token tables."""

    traits: frozenset[Trait]
    kinds: tuple[str, ...]
    rows: int
    columns: int

    @classmethod
    def of(cls, case: Case) -> CaseTraits:
        kinds = tuple(step.kind for step in case.steps())
        return cls(_program_traits(case), kinds, case.batch, case.length)

    def lacks(self, wanted: CaseTraits) -> int:
        """How much of what is `wanted` is not there."""
        smaller = (self.rows < wanted.rows) + (self.columns < wanted.columns)
        missing = len(wanted.kinds) - _followed(wanted.kinds, self.kinds)
        return len(wanted.traits - self.traits) + missing + smaller


def order_cases(
    mutant: Mutant, cases: Sequence[Case], likenesses: tuple[CaseTraits, ...]
) -> list[int]:
    """The indices of `cases`, which have these `likenesses`: those first that lack least of what
    the witness of `mutant` has, then those that have least besides it; in their own order for one
    without a witness."""
    witness = mutant.witness
    if witness is None:
        return list(range(len(cases)))
    unlike, settings = _unlike(CaseTraits.of(witness), likenesses), _config_traits(witness.config)
    if settings:
        other = [len(settings - _fitted(mutant, case)) for case in cases]
        unlike = tuple(
            (lacking + lacks, *rest) for lacks, (lacking, *rest) in zip(other, unlike, strict=True)
        )
    return [index for *_, index in sorted(unlike)]


@functools.lru_cache(maxsize=128)
def _unlike(wanted: CaseTraits, likenesses: tuple[CaseTraits, ...]) -> tuple[tuple[int, ...], ...]:
    """For each of `likenesses` how much it lacks of what is `wanted`, what it has besides, how far
    it is from the best length, and its index. Many mutants have like witnesses."""
    best = 2 * wanted.columns + ROOM
    return tuple(
        (has.lacks(wanted), len(has.traits - wanted.traits), abs(has.columns - best), index)
        for index, has in enumerate(likenesses)
    )


def _followed(wanted: Sequence[str], kinds: Sequence[str]) -> int:
    """How many of the first steps that are `wanted` there are, in this order, among `kinds`."""
    steps = iter(kinds)
    return next((count for count, kind in enumerate(wanted) if kind not in steps), len(wanted))


def _fitted(mutant: Mutant, case: Case) -> frozenset[Trait]:
    """The traits of the settings of `case` as it is fitted to `mutant`."""
    return _config_traits({**case.config, **mutant.required_config(case.config)})


def _program_traits(case: Case) -> frozenset[Trait]:
    """The traits of the program of `case`: its features, and how its first tokens enter the cache
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
    """The traits of a decoder of this `config`."""
    return frozenset((name, str(config[name])) for name in SETTINGS if name in config)
