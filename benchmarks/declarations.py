"""Does a kill matrix of our library bear out what its mutants declare, and which step kills what?

Runs every case on every mutant of the zoo. Prints each law and each element of a mutant's witness
(crop, left padding, ...) that no killing case shows, though some case has it; then, by element, the
mutants that only cases with that element kill. Exits 1 if a declaration is not borne out.

python benchmarks/declarations.py --seed 0 -n 2
"""

from __future__ import annotations

import sys
from collections.abc import Iterator

import click

from kvfuzz.case.features import FEATURES, features_of
from mutants.campaign.result import Result, Score
from mutants.campaign.score import score
from mutants.library.registry import find


@click.command()
@click.option("--seed", default=0, show_default=True)
@click.option("--examples", default=250, show_default=True)
@click.option("-n", "--workers", default=2, show_default=True)
def main(seed: int, examples: int, workers: int) -> None:
    settings = {"seed": seed, "examples": examples, "workers": workers}
    result = score("zoo", matrix=True, shrink=False, **settings)
    killed = [each for each in result.results if each.state == "killed"]
    missing = [line for each in killed for line in not_borne_out(result, each)]
    for line in missing:
        print(line)
    print(f"{len(killed)} killed mutants, {len(missing)} declarations that no kill bears out")
    for element in FEATURES:
        only = [each.id for each in killed if all(element in has for has in kills(result, each))]
        print(f"{element:15} {len(only):3} mutants only by cases with it: {', '.join(only)}")
    sys.exit(1 if missing else 0)


def kills(found: Score, result: Result) -> list[frozenset[str]]:
    """The features of each case that kills the mutant, with the settings that the mutant needs."""
    mutant = find(result.id)
    return [features_of(mutant.with_required_config(found.cases[index])) for index in result.kills]


def not_borne_out(found: Score, result: Result) -> Iterator[str]:
    """The declarations of a killed mutant that no kill shows."""
    mutant = find(result.id)
    drawn = frozenset().union(
        *(features_of(mutant.with_required_config(case)) for case in found.cases)
    )
    shown = frozenset().union(*kills(found, result))
    if mutant.law not in result.laws:
        yield f"{result.id} declares the law {mutant.law}; its kills break {set(result.laws)}"
    for word in mutant.exercises:
        if word in drawn - shown:
            yield f"{result.id} declares {word}; no killing case has it"


if __name__ == "__main__":
    main()
