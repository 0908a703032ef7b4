"""The patterns of the library's faults, by which a divergence is told to look like one of them.

Each is that of the fault's witness. To run all witnesses takes a minute, so they are kept in
`patterns.json`, which `python -m mutants.similar.store` writes.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from kvfuzz.case.case import Case
from kvfuzz.localize.location import Location
from kvfuzz.localize.traced_states import compare_sites, difference_map, find_divergence
from kvfuzz.subjects.loading import load
from kvfuzz.subjects.protocol import Factory
from mutants.library.mutant import Mutant
from mutants.library.mutant_scheme import mutated
from mutants.library.registry import HOME, library
from mutants.similar.pattern import Pattern, pattern

STORE = Path(__file__).with_name("patterns.json")


@functools.cache
def patterns() -> Mapping[str, Pattern]:
    """The pattern of each fault of the library that shows in the logits, by its id, as it is
    stored. Those of other packages have none: a fault is not run where somebody else's is looked
    at, since it may end the process, or leave a change behind."""
    known = stored()
    return {mutant.id: known[mutant.id] for mutant in shown() if mutant.id in known}


def shown() -> list[Mutant]:
    """The faults that have a site where they show first, and then show in the logits."""
    told = (m for m in library().values() if m.law == "agreement" and not m.watches)
    return [mutant for mutant in told if mutant.site is not None]


def stored() -> dict[str, Pattern]:
    """The patterns in the file, by id."""
    data = json.loads(STORE.read_text(encoding="utf-8"))
    return {
        mutant_id: {name: frozenset(words) for name, words in features.items()}
        for mutant_id, features in data.items()
    }


def witnessed(mutant: Mutant) -> Pattern:
    """The pattern of the witness of `mutant`, run now."""
    assert mutant.witness is not None
    location = located(mutated(load(mutant.subject), mutant), mutant.witness)
    return pattern(location, mutant.witness)


def located(factory: Factory, case: Case) -> Location:
    """Where `case` goes wrong, with its map of differences, as `kvfuzz.localize.locate` finds it:
    in float64 where the factory offers it, and in the case's own dtype where float64 shows nothing.

    It asks for no nearest fault, as `kvfuzz.localize.locate.locate` does.
    """
    for dtype in dict.fromkeys(("float64", case.dtype)):
        if dtype in factory.dtypes or dtype == case.dtype:
            case_in = replace(case, dtype=dtype)
            states = list(compare_sites(factory.subject(case_in), case_in))
            first = next(filter(None, map(find_divergence, states)), None)
            if first is not None:
                return Location(first, cells=tuple(difference_map(states)))
    return Location(None)


def _text() -> str:
    """The file: a line for each fault of the library itself."""
    lines = []
    for mutant in shown():
        if mutant.fault.__module__.startswith(f"{HOME}."):
            words = {name: sorted(found) for name, found in witnessed(mutant).items()}
            lines.append(f"{json.dumps(mutant.id)}: {json.dumps(words)}")
    return "{\n" + ",\n".join(lines) + "\n}\n"


if __name__ == "__main__":
    STORE.write_text(_text(), encoding="utf-8")
