"""Explains a divergence: where it begins, which paths agree, whether it repeats."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from kvfuzz.case.case import Case
from kvfuzz.case.verdict import Verdict
from kvfuzz.errors import KvfuzzError, one_line
from kvfuzz.localize.locate import locate
from kvfuzz.localize.location import Location
from kvfuzz.localize.other_laws import locate_by_law
from kvfuzz.localize.paths import PathGroups, compare_paths
from kvfuzz.search.judge import judge_by
from kvfuzz.search.second_cache import note_of_second_cache
from kvfuzz.subjects.protocol import Factory
from kvfuzz.subjects.run import seeded


@dataclass(frozen=True)
class Explanation:
    """Where a divergence begins (`location`) and which paths agree (`paths`), each None if unknown.
    `repeatable` is false if a fresh subject gave another verdict. `notes` are sentences about what
    may mislead."""

    location: Location | None = None
    paths: PathGroups | None = None
    repeatable: bool = True
    notes: tuple[str, ...] = ()


def explain(factory: Factory, case: Case, verdict: Verdict, locating: bool = True) -> Explanation:
    """Explains the diverged `verdict` on `case`; locates it if `locating`. An error here becomes a
    note: it must not hide the verdict."""
    notes: list[str] = []
    location, paths = find_location(factory, case, verdict, notes, locating)
    try:
        subject = factory.subject(case)
        repeatable = judge_by(verdict.law, subject, case, factory.name).status == verdict.status
    except KvfuzzError as error:
        notes.append(f"a fresh subject cannot be run: {error}")
        return Explanation(location, paths, False, tuple(notes))
    if (note := note_of_second_cache(factory, case, verdict)) is not None:
        notes.append(note)
    if _in_training(subject):
        notes.append("the model is in training mode, where dropout is random: call model.eval()")
    return Explanation(location, paths, repeatable, tuple(notes))


def find_location(
    factory: Factory, case: Case, verdict: Verdict, notes: list[str], locating: bool = True
) -> tuple[Location | None, PathGroups | None]:
    """Returns where the diverged `verdict` on `case` begins, and which paths agree; each None if
    unknown. Without `locating` only the paths are compared. An error becomes one of the `notes`."""
    location, paths = None, None
    with seeded(case.seed):
        if verdict.law == "agreement" and (verdict.error is None or verdict.error_step is not None):
            try:
                paths = compare_paths(factory.subject(case), case)
                if locating:
                    location = locate(factory, case, paths=paths)
            except Exception as error:
                notes.append(f"not located: {one_line(error)}")
    if locating and (location is None or location.first is None):
        location = _locate_by_law(factory, case, verdict, notes) or location
    return location, paths


def _locate_by_law(
    factory: Factory, case: Case, verdict: Verdict, notes: list[str]
) -> Location | None:
    """Locates a verdict that does not compare logits of the two paths; None where nothing is found
    or no line can be. An error becomes one of the `notes`."""
    try:
        return locate_by_law(factory, case, verdict.law, bool(verdict.precision))
    except Exception as error:
        notes.append(f"not located: {one_line(error)}")
        return None


def _in_training(subject: Any) -> bool:
    """Returns whether a dropout module of the subject's model is in training mode."""
    model = getattr(subject, "model", None)
    if not isinstance(model, torch.nn.Module):
        return False
    dropouts = (module for module in model.modules() if "Dropout" in type(module).__name__)
    return any(module.training and getattr(module, "p", 1) for module in dropouts)
