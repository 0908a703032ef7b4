"""Finds pairs of faults of the library that mask each other.

Draws pairs of faults that replace different functions, runs both at once on the cases of a
campaign, and prints the pairs that survive although each fault alone is killed. Exits 1 if there
are any.

python benchmarks/pairs.py --seed 0 --pairs 100
"""

from __future__ import annotations

import random
import sys
from collections.abc import Callable, Iterable
from dataclasses import replace
from itertools import combinations
from typing import Any

import click
import torch

from kvfuzz.subjects.loading import Options
from mutants.campaign.cases import prepare_cases
from mutants.campaign.prepared_cases import check_baseline
from mutants.campaign.run import run_mutant
from mutants.library.registry import library
from mutants.mutant import Mutant


@click.command()
@click.option("--seed", default=0, show_default=True)
@click.option("--pairs", "count", default=100, show_default=True)
@click.option("--examples", default=250, show_default=True)
def main(seed: int, count: int, examples: int) -> None:
    torch.set_num_threads(1)
    prepared = prepare_cases("zoo", Options(), examples, seed)
    if problem := check_baseline(prepared):
        sys.exit(problem)
    drawn = random.Random(seed).sample(all_pairs(library().values()), count)
    survived = [two for two in drawn if run_mutant(prepared, combined(*two)).state == "survived"]
    masked = [
        two for two in survived if all(run_mutant(prepared, m).state == "killed" for m in two)
    ]
    for one, other in masked:
        print(f"{one.id} and {other.id} mask each other: each alone is killed")
    print(f"{count} pairs, {len(survived)} survived, {len(masked)} mask each other")
    sys.exit(1 if masked else 0)


def all_pairs(mutants: Iterable[Mutant]) -> list[tuple[Mutant, Mutant]]:
    """The pairs that replace different functions and fit one configuration."""
    plain = [m for m in mutants if m.law == "agreement" and not (m.both or m.sizes or m.equivalent)]
    return [
        (one, other)
        for one, other in combinations([m for m in plain if not m.is_control], 2)
        if one.subject == other.subject
        and not set(one.targets) & set(other.targets)
        and all(common_needs(one, other).values())
    ]


def common_needs(one: Mutant, other: Mutant) -> dict[str, tuple[Any, ...]]:
    """The settings that both need; an empty tuple where they exclude each other."""
    shared = one.needs.keys() & other.needs.keys()
    both = {name: tuple(v for v in one.needs[name] if v in other.needs[name]) for name in shared}
    return {**one.needs, **other.needs, **both}


def combined(one: Mutant, other: Mutant) -> Mutant:
    """Both faults at once."""
    return replace(
        one,
        operator="pair",
        name=f"{one.id}+{other.id}",
        targets=(*one.targets, *other.targets),
        fault=_both(one, other),
        site=None,
        witness=None,
        needs=common_needs(one, other),
    )


def _both(one: Mutant, other: Mutant) -> Callable[..., tuple[Any, ...]]:
    """A fault that replaces the targets of `one` and then those of `other`."""

    def fault(*real: Any) -> tuple[Any, ...]:
        split = len(one.targets)
        made = one.fault(*real[:split]), other.fault(*real[split:])
        return tuple(f for each in made for f in (each if isinstance(each, tuple) else (each,)))

    return fault


if __name__ == "__main__":
    main()
