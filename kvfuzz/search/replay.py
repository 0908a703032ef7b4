"""Runs counterexamples again, from one file or a directory: a regression test."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from kvfuzz.case.case import Case
from kvfuzz.case.counterexample import Counterexample, read
from kvfuzz.case.verdict import Verdict
from kvfuzz.errors import InvalidSubject, KvfuzzError, UsageError
from kvfuzz.localize.locate import locate
from kvfuzz.localize.location import Location
from kvfuzz.localize.other_laws import locate_by_law
from kvfuzz.oracle.laws import COMPANIONS
from kvfuzz.search.explain import Explanation, explain
from kvfuzz.search.judge import judge_by
from kvfuzz.subjects.loading import Options, load
from kvfuzz.subjects.protocol import Factory


@dataclass(frozen=True)
class Replayed:
    """The result of running one file again: a verdict, or the error that prevented the run."""

    path: Path
    found: Counterexample | None = None
    subject: str | None = None
    verdict: Verdict | None = None
    explanation: Explanation | None = None
    error: str | None = None

    def to_json(self) -> dict[str, Any]:
        location = self.explanation.location if self.explanation else None
        return {
            "path": str(self.path),
            "subject": self.subject,
            "verdict": self.verdict.status if self.verdict else None,
            "excess": self.verdict.excess if self.verdict else None,
            "located": location.summary() if location else None,
            "error": self.error,
        }


def replay(
    path: Path | str,
    *,
    subject: str | None = None,
    device: str | None = None,
    announce: Callable[[Counterexample, str], None] | None = None,
) -> Replayed:
    """Runs the counterexample at `path` again, on the subject that it names or on `subject`.

    Calls `announce` before the subject is imported. If the run is not possible, `error` of the
    result says why.
    """
    path = Path(path)
    try:
        found = read(path)
    except KvfuzzError as error:
        return Replayed(path, error=str(error))
    name = subject or found.subject
    if announce is not None:
        announce(found, name)
    try:
        return _run(path, found, name, device)
    except KvfuzzError as error:
        return Replayed(path, found, name, error=f"{path}: {error}")


def locate_file(
    path: Path,
    *,
    subject: str | None = None,
    device: str | None = None,
    strict: bool = False,
    announce: Callable[[Counterexample, str], None] | None = None,
) -> tuple[str, Case, Location]:
    """Locates the counterexample at `path` (`kvfuzz.locate`), on the subject that it names or on
    `subject`. Returns the subject's name, the case that was run, and the location. Raises
    KvfuzzError if the run is not possible."""
    found = read(path)
    name = subject or found.subject
    if announce is not None:
        announce(found, name)
    try:
        _run_before(found, name, device)
        location = _locate_in_float64(found, name, device, strict)
        if location is not None and location.located:
            return name, found.case, location
        factory, case = _load(found, name, device)
        location = locate(factory, case, strict=strict)
        if not location.located:
            law = found.verdict.get("law", "agreement")
            by_law = locate_by_law(factory, case, law, bool(found.verdict.get("precision")))
            location = by_law or location
        return name, case, _with_note(location, found)
    except KvfuzzError as error:
        raise UsageError(f"{path}: {error}") from error


def _with_note(location: Location, found: Counterexample) -> Location:
    """Adds a note to `location` if the counterexample breaks another law than agreement."""
    law = found.verdict.get("law", "agreement")
    if location.first is not None or law == "agreement":
        return location
    note = (
        f"the counterexample breaks the law {law}, which does not compare the cached path with the "
        "uncached one: see `kvfuzz replay`"
    )
    return replace(location, notes=(*location.notes, note))


def _locate_in_float64(
    found: Counterexample, name: str, device: str | None, strict: bool
) -> Location | None:
    """Locates the counterexample in float64, where no rounding hides it; returns None if the
    subject does not run in float64."""
    if not options_of(found, device).twin:
        return None
    case = replace(found.case, dtype="float64")
    with suppress(UsageError, InvalidSubject):
        factory, case = _load(replace(found, case=case), name, device)
        if "float64" in factory.dtypes:
            return locate(factory, case, strict=strict)
    return None


def exit_code(replayed: Sequence[Replayed]) -> int:
    """Returns 2 if a file could not be run, else 1 if one diverged, else 3 if none was compared,
    else 0."""
    if any(item.error for item in replayed):
        return 2
    statuses = {item.verdict.status for item in replayed if item.verdict}
    if "diverged" in statuses:
        return 1
    return 0 if "agreed" in statuses else 3


def _run(path: Path, found: Counterexample, name: str, device: str | None) -> Replayed:
    factory, case = _load(found, name, device)
    _run_before(found, name, device)
    law = found.verdict.get("law", "agreement")
    verdict = judge_by(str(law), factory.subject(case), case, factory.name)
    if not verdict.diverged:
        return Replayed(path, found, name, verdict)
    precise = _locate_in_float64(found, name, device, strict=False) if law == "agreement" else None
    located = precise is not None and precise.first is not None
    explanation = explain(factory, case, verdict, locating=not located)
    if located:
        explanation = replace(explanation, location=precise)
    return Replayed(path, found, name, verdict, explanation)


def _run_before(found: Counterexample, name: str, device: str | None) -> None:
    """Runs the cases that have to run before the one of `found`, whatever comes of them: by every
    law, since any of its runs may have left something behind."""
    if found.before:
        load(name, options_of(found, device)).limits()  # as a hunt does before its first case
    for case in found.before:
        factory, earlier = _load(replace(found, case=case), name, device)
        for law in ("agreement", *COMPANIONS):
            judge_by(law, factory.subject(earlier), earlier, factory.name)


def _load(found: Counterexample, name: str, device: str | None) -> tuple[Factory, Case]:
    options = options_of(found, device)
    return load_for(name, options, found.case, another=name != found.subject)


def options_of(found: Counterexample, device: str | None = None) -> Options:
    """Returns the options that the counterexample was found with: its device, unless another is
    asked for, and whether there was a float64 twin."""
    recorded = found.environment
    where = device or str(recorded.get("device", "cpu"))
    return Options(device=where, twin=recorded.get("twin") is not False)


def load_for(name: str, options: Options, case: Case, another: bool) -> tuple[Factory, Case]:
    """Loads the factory called `name`, with the configuration of `case`; returns it and the case.

    If it is `another` subject than the recorded one and does not take the recorded configuration or
    dtype, it runs the same tokens and schedule with its own.
    """
    try:
        return load(name, replace(options, dtype=case.dtype, config=case.config)), case
    except UsageError:
        if not another:
            raise
    factory = load(name, options)
    return factory, replace(case, config=factory.first_config(), dtype=factory.dtypes[0])
