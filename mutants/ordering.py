"""In which order a mutant meets the cases: those first that are most like the case that kills it.

Which cases there are is the fuzzer's business, and whether one of them kills does not depend on the
order. How many are run until then does: in the order in which they were drawn a mutant of the zoo
meets ten, in this one two.
"""

from __future__ import annotations

from collections.abc import Sequence

from kvfuzz.case import Case
from mutants.mutant import Mutant
from mutants.schedules import Trait, config_traits, program_traits

ROOM = 4
"""A case is best about twice as long as the witness, and this much: long enough that the fault has
something to work on."""


def likely_first(
    mutant: Mutant, cases: Sequence[Case], traits: Sequence[frozenset[Trait]]
) -> list[int]:
    """The indices of `cases`, whose programs have these `traits`: those first that lack least of
    what the witness of `mutant` has; in their own order for one without a witness."""
    witness = mutant.witness
    if witness is None:
        return list(range(len(cases)))
    wanted = program_traits(witness) | config_traits(witness.config)

    def lacks(index: int) -> tuple[int, int, int]:
        case = cases[index]
        has = traits[index] | config_traits({**case.config, **mutant.fitting(case.config)})
        missing = len(wanted - has) + (case.batch < witness.batch) + (case.length < witness.length)
        return missing, abs(case.length - 2 * witness.length - ROOM), index

    return sorted(range(len(cases)), key=lacks)
