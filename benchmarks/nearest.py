"""How often the nearest fault of the library is of the right operator, when the fault itself and
its near-twins are left out of the comparison.

python benchmarks/nearest.py --seed 7 -n 2

On the witnesses of the library, and on what a hunt under each seed finds and shrinks. `--keep FILE`
keeps what was found, a line of JSON each, and takes from there what is there already.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import click
import torch

from kvfuzz.case.case import Case
from kvfuzz.localize.location import Location
from kvfuzz.search.hunt import fuzz
from kvfuzz.search.pool import pool
from kvfuzz.subjects.loading import load
from mutants.equivalence.twins import near_twins
from mutants.library.mutant import Mutant
from mutants.library.mutant_scheme import mutated
from mutants.library.registry import find, library
from mutants.similar.nearest import nearest
from mutants.similar.store import located, shown

LeftOut = Callable[[Mutant], Collection[str]]


@dataclass(frozen=True)
class Seen:
    """A case on which a fault diverges, and where."""

    mutant: Mutant
    case: Case
    location: Location


def twins(mutant: Mutant) -> Collection[str]:
    return near_twins(mutant, library().values())


def same_targets(mutant: Mutant) -> Collection[str]:
    """Its near-twins, and whatever of its operator replaces the same functions."""
    siblings = (o for o in shown() if o.operator == mutant.operator)
    return {o.id for o in siblings if o.targets == mutant.targets} | set(twins(mutant))


def operator(mutant: Mutant) -> Collection[str]:
    """All of its operator: whatever is named now is wrong."""
    return {other.id for other in library().values() if other.operator == mutant.operator}


def found_case(mutant_id: str, seed: int) -> Case | None:
    """What a hunt under `seed` finds, shrunk: where the logits differ, whatever breaks a companion
    law before that."""
    torch.set_num_threads(1)
    for laws in ({}, {"laws": ("agreement",)}):
        failure = fuzz(f"mutant:{mutant_id}", seed=seed, **laws).failure
        if failure is not None and failure.verdict.law == "agreement":
            return failure.case
    return None


def hunted(seed: int, workers: int, keep: Path | None) -> Iterator[tuple[Mutant, Case]]:
    """What is found of each fault; one that is not found is printed."""
    known = _kept(seed, keep)
    missing = [mutant.id for mutant in shown() if mutant.id not in known]
    with pool(workers) as executor:
        for mutant_id, case in zip(
            missing, executor.map(found_case, missing, [seed] * len(missing)), strict=True
        ):
            if case is None:
                print(f"seed {seed} finds no case of {mutant_id} in which the logits differ")
                continue
            known[mutant_id] = case
            if keep is not None:
                line = json.dumps({"id": mutant_id, "seed": seed, "case": case.to_json()})
                with keep.open("a") as file:
                    file.write(line + "\n")
    return iter([(find(mutant_id), case) for mutant_id, case in sorted(known.items())])


def _kept(seed: int, keep: Path | None) -> dict[str, Case]:
    if keep is None or not keep.exists():
        return {}
    lines = map(json.loads, keep.read_text().splitlines())
    return {line["id"]: Case.from_json(line["case"]) for line in lines if line["seed"] == seed}


def seen(cases: Iterator[tuple[Mutant, Case]]) -> list[Seen]:
    """Each case where it goes wrong; one of which no state differs is printed."""
    found = []
    for mutant, case in cases:
        location = located(mutated(load(mutant.subject), mutant), case)
        if location.first is None:
            print(f"no state differs on the case of {mutant.id}")
        else:
            found.append(Seen(mutant, case, location))
    return found


def named(each: Seen, left_out: LeftOut) -> str | None:
    """The operator of the nearest fault, None where none is close."""
    close = nearest(each.location, each.case, left_out(each.mutant))
    return find(close[0].id).operator if close else None


def measure(name: str, cases: Sequence[Seen]) -> None:
    """Print the figures, and what the wrong ones are taken for."""
    nameable = [each for each in cases if _others(each.mutant, twins)]
    print(f"\n{name}: {len(cases)} faults, {len(nameable)} of operators that have another left")
    answers = [(each.mutant.operator, named(each, twins)) for each in nameable]
    _print_share("right operator", [right == answer for right, answer in answers])
    _print_share("silent", [answer is None for _, answer in answers])
    distant = [each for each in cases if _others(each.mutant, same_targets)]
    _print_share(
        "right, with all of the operator that replace the same functions left out",
        [named(each, same_targets) == each.mutant.operator for each in distant],
    )
    _print_share(
        "something named, with the operator left out",
        [named(each, operator) is not None for each in cases],
    )
    _print_table(answers)


def _others(mutant: Mutant, left_out: LeftOut) -> bool:
    """Whether something of its operator is left to be named."""
    left = left_out(mutant)
    return any(o.operator == mutant.operator and o.id not in left for o in shown())


def _print_share(what: str, holds: list[bool]) -> None:
    print(f"  {sum(holds):3} of {len(holds)} ({sum(holds) / len(holds):.1%}) {what}")


def _print_table(answers: list[tuple[str, str | None]]) -> None:
    """One line per operator: how many are right, and what the others are taken for."""
    for name in sorted({right for right, _ in answers}):
        given = [answer for right, answer in answers if right == name]
        wrong = Counter(answer or "nothing" for answer in given if answer != name)
        taken = ", ".join(f"{count} for {other}" for other, count in wrong.most_common())
        print(f"    {name:12} {given.count(name):2} of {len(given):2}  {taken}")


@click.command()
@click.option("--seed", "seeds", multiple=True, type=int, default=(7,), show_default=True)
@click.option("-n", "workers", default=1, show_default=True)
@click.option("--keep", type=click.Path(path_type=Path, dir_okay=False))
def main(seeds: tuple[int, ...], workers: int, keep: Path | None) -> None:
    torch.set_num_threads(1)
    measure("witnesses", seen((mutant, mutant.witness) for mutant in shown() if mutant.witness))
    for seed in seeds:
        measure(f"found under seed {seed}", seen(hunted(seed, workers, keep)))


if __name__ == "__main__":
    main()
