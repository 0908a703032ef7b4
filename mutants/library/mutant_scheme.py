"""Makes `mutant:ID` a subject that can be fuzzed, replayed and located like any other."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from kvfuzz.errors import InvalidSubject, UsageError
from kvfuzz.subjects.injection import Faulty
from kvfuzz.subjects.loading import Options, load
from kvfuzz.subjects.protocol import Factory
from mutants.library.registry import find, matches
from mutants.mutant import ANY, Mutant


def factory(rest: str, options: Options) -> Factory:
    """Returns the factory of `ID`, or of `ID@SUBJECT` for another subject that the mutant fits, as
    in `append.drops_the_newest@zoo:rope`.

    Raises InvalidSubject for an unknown mutant or a subject it does not fit.
    """
    mutant_id, _, subject = rest.partition("@")
    try:
        mutant = find(mutant_id)
    except UsageError as error:
        raise InvalidSubject(str(error)) from None
    if not subject and mutant.subject == ANY:
        raise InvalidSubject(f"{mutant_id} fits any subject: name one, as mutant:{mutant_id}@zoo")
    if subject and not matches(mutant, subject):
        raise InvalidSubject(f"{mutant_id} is a fault of {mutant.subject}, not of {subject}")
    return with_mutant(load(subject or mutant.subject, options), mutant)


def with_mutant(factory: Factory, mutant: Mutant) -> Factory:
    """Returns `factory` with `mutant` in every subject that it builds. It draws the same cases,
    except for settings with which the fault makes no sense.

    Raises InvalidSubject where such a setting is fixed.
    """
    if not mutant.fits(factory.fixed):
        wanted = ", ".join(f"{name} in {list(fit)}" for name, fit in mutant.needs.items())
        raise InvalidSubject(f"{mutant.id} needs {wanted}; fixed is {dict(factory.fixed)}")

    def build(seed: int, dtype: str, config: Mapping[str, Any]) -> Faulty:
        return mutant.into(factory.build(seed, dtype, config), dtype)

    place = "" if factory.name == mutant.subject else f"@{factory.name}"
    drawn = {name: fit for name, fit in mutant.needs.items() if name not in factory.fixed}
    return replace(
        factory,
        name=f"mutant:{mutant.id}{place}",
        build=build,
        choices={**factory.choices, **drawn},
    )
