"""Two faults at once: what each shows alone, the other may hide."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from itertools import combinations
from typing import Any

from kvfuzz.errors import UsageError
from mutants.library.mutant import Mutant

JOIN = "+"


@dataclass(frozen=True)
class Pair(Mutant):
    """Both of `parts`, the second put upon the first where they replace the same function. Its id
    is theirs, joined by a plus."""

    parts: tuple[Mutant, ...] = ()

    @property
    def id(self) -> str:
        return self.name

    @property
    def source(self) -> str:
        return "\n\n".join(part.source for part in self.parts)


def pair(first: Mutant, second: Mutant) -> Pair:
    """The two at once. Raises UsageError if no case can show both (see `paired`)."""
    needs = _needs(first, second)
    if needs is None or not (_can_be_paired(first) and _can_be_paired(second)):
        raise UsageError(
            f"{first.id} and {second.id} cannot be paired: a pair has two faults of one subject's "
            "cached path, of no size, told by agreement, that make sense with the same settings"
        )
    targets = tuple(dict.fromkeys((*first.targets, *second.targets)))
    return Pair(
        operator="pair",
        name=f"{first.id}{JOIN}{second.id}",
        description=f"{first.description} And: {second.description}",
        targets=targets,
        fault=_both(targets, first, second),
        site=None,
        witness=None,
        subject=first.subject,
        needs=needs,
        parts=(first, second),
    )


def drawn_pairs(mutants: Iterable[Mutant], count: int, seed: int) -> list[Pair]:
    """`count` of `all_pairs` of `mutants`, drawn by `seed`; all, if there are no more."""
    fitting = all_pairs(mutants)
    drawn = random.Random(seed).sample(fitting, min(count, len(fitting)))
    return [pair(*two) for two in drawn]


def all_pairs(mutants: Iterable[Mutant]) -> list[tuple[Mutant, Mutant]]:
    """The pairs of single `mutants` that replace different functions and that a case can show."""
    single = (mutant for mutant in mutants if not isinstance(mutant, Pair))
    offered = [mutant for mutant in single if _can_be_paired(mutant)]
    return [
        two
        for two in combinations(offered, 2)
        if not set(two[0].targets) & set(two[1].targets) and _needs(*two) is not None
    ]


def _can_be_paired(mutant: Mutant) -> bool:
    told = mutant.law == "agreement" and not mutant.both and not mutant.sizes
    return told and not mutant.watches and mutant.equivalent is None


def _needs(first: Mutant, second: Mutant) -> dict[str, tuple[Any, ...]] | None:
    """The settings with which both make sense; None if there are none."""
    if first.subject != second.subject or first.id == second.id:
        return None
    needs = {**first.needs, **second.needs}
    for name in first.needs.keys() & second.needs.keys():
        needs[name] = tuple(v for v in first.needs[name] if v in second.needs[name])
    return None if any(not values for values in needs.values()) else needs


def _both(targets: tuple[str, ...], *parts: Mutant) -> Callable[..., tuple[Any, ...]]:
    """The fault that puts each of `parts` upon what those before it made of `targets`."""

    def fault(*real: Any) -> tuple[Any, ...]:
        current = dict(zip(targets, real, strict=True))
        for part in parts:
            made = part.fault(*(current[target] for target in part.targets))
            functions = made if isinstance(made, tuple) else (made,)
            current.update(zip(part.targets, functions, strict=True))
        return tuple(current.values())

    return fault
