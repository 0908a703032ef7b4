"""Finds the mutants of `mutants/library/faults/`, of `mutants/generic/faults/` and of packages.

A package offers mutants under the entry point group `kvfuzz.mutants`: the name of a module, or of
a package whose modules hold them.
"""

from __future__ import annotations

import functools
import importlib
import pkgutil
from collections.abc import Iterator, Mapping
from importlib.metadata import entry_points
from types import ModuleType
from typing import Any

from kvfuzz.errors import UsageError, did_you_mean, one_line
from mutants.mutant import ANY, Mutant

LIBRARY = "mutants.library.faults"
GENERIC = "mutants.generic.faults"
GROUP = "kvfuzz.mutants"


@functools.cache
def library() -> dict[str, Mutant]:
    """Returns the mutants for one subject each, by id, sorted. Raises UsageError if two have the
    same id, or if a package that offers mutants does not import."""
    return _collect({LIBRARY, *(entry.value for entry in entry_points(group=GROUP))})


@functools.cache
def generic_mutants() -> dict[str, Mutant]:
    """Returns the mutants that fit any subject, by id, sorted."""
    return _collect({GENERIC})


def all_mutants() -> dict[str, Mutant]:
    """Returns the library and the generic mutants, by id."""
    return {**library(), **generic_mutants()}


def _collect(names: set[str]) -> dict[str, Mutant]:
    found: dict[str, Mutant] = {}
    for module in _modules(names):
        for thing in vars(module).values():
            if not isinstance(thing, Mutant) or thing.fault.__module__ != module.__name__:
                continue
            other = found.setdefault(thing.id, thing)
            if other is not thing:
                raise UsageError(
                    f"two mutants are called {thing.id!r}, in {other.fault.__module__} and in "
                    f"{module.__name__}: rename one, or uninstall the package that offers it"
                )
    return dict(sorted(found.items()))


def find(mutant_id: str) -> Mutant:
    """Returns the mutant `mutant_id`. Raises UsageError with near matches."""
    known = all_mutants()
    if mutant_id not in known:
        raise UsageError(
            f"there is no mutant {mutant_id!r}{did_you_mean(mutant_id, known)}: "
            "see `kvfuzz mutants`"
        )
    return known[mutant_id]


def known(mutant_id: str) -> Mutant | None:
    """Returns the mutant `mutant_id`; None for one that no longer exists, which an old result
    names."""
    try:
        return find(mutant_id)
    except UsageError:
        return None


def select(
    subject: str,
    ids: tuple[str, ...] = (),
    operators: tuple[str, ...] = (),
    fixed: Mapping[str, Any] | None = None,
    anywhere: bool = False,
) -> tuple[list[Mutant], list[Mutant]]:
    """Returns the mutants of `subject` to score, and the controls. The generic mutants serve a
    subject without mutants of its own, and any subject with `anywhere`.

    `ids`, `operators` and `fixed` settings restrict the mutants. Raises UsageError for an unknown
    name, for a mutant of another subject, or if none is left.
    """
    own = [mutant for mutant in library().values() if matches(mutant, subject)]
    asked = any(find(mutant_id).subject == ANY for mutant_id in ids) or any(
        mutant.operator in operators for mutant in generic_mutants().values()
    )
    known = generic_mutants().values() if anywhere or asked or not own else own
    offered = [mutant for mutant in known if mutant.fits(fixed or {})]
    of_operators(operators)
    chosen = [_find_for(mutant_id, subject) for mutant_id in ids]
    wanted = {mutant.id for mutant in chosen}
    scored = [
        mutant
        for mutant in offered
        if not mutant.is_control
        and (not wanted or mutant.id in wanted)
        and (not operators or mutant.operator in operators)
    ]
    if not scored:
        raise _nothing_to_score(subject, ids, operators)
    watch = [mutant for mutant in offered if mutant.is_control]
    # A package that offers no controls of its own gets the generic ones.
    return scored, watch or [mutant for mutant in generic_mutants().values() if mutant.is_control]


def _nothing_to_score(subject: str, ids: tuple[str, ...], operators: tuple[str, ...]) -> UsageError:
    if ids and operators:
        return UsageError(
            f"no mutant is both in --mutant {', '.join(ids)} and in the family --operator "
            f"{', '.join(operators)}: give one of the two options"
        )
    subjects = sorted({mutant.subject for mutant in all_mutants().values()})
    return UsageError(
        f"no mutant to score for subject {subject!r}: the library has faults for "
        f"{', '.join(subjects)}; packages add theirs through the entry point {GROUP}"
    )


def _find_for(mutant_id: str, subject: str) -> Mutant:
    """Returns the mutant `mutant_id`. Raises UsageError if it is not one of `subject`."""
    mutant = find(mutant_id)
    if not matches(mutant, subject):
        raise UsageError(f"{mutant_id} is a fault of {mutant.subject}, not of {subject}")
    return mutant


def of_operators(operators: tuple[str, ...] = ()) -> list[Mutant]:
    """Returns the mutants of `operators`, or all. Raises UsageError for an unknown operator."""
    known = sorted({mutant.operator for mutant in all_mutants().values()})
    for operator in operators:
        if operator not in known:
            raise UsageError(
                f"there is no operator {operator!r}{did_you_mean(operator, known)}: choose from "
                f"{', '.join(known)}"
            )
    return [m for m in all_mutants().values() if not operators or m.operator in operators]


def matches(mutant: Mutant, subject: str) -> bool:
    """Whether `mutant` fits `subject`. `zoo` stands for every preset of the built-in decoder."""
    return mutant.subject in (ANY, subject, subject.partition(":")[0])


def _modules(names: set[str]) -> Iterator[ModuleType]:
    for name in sorted(names):
        module = _import(name)
        yield module
        for info in pkgutil.iter_modules(getattr(module, "__path__", [])):
            yield _import(f"{name}.{info.name}")


def _import(name: str) -> ModuleType:
    """Imports the module `name`. Raises UsageError for whatever its import raises."""
    try:
        return importlib.import_module(name)
    except (Exception, SystemExit) as error:
        raise UsageError(f"the mutants of {name} do not import: {one_line(error)}") from None
