"""Run counterexamples again: a regression gate over one file or a directory of them."""

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
from kvfuzz.search.explain import Explanation, explain
from kvfuzz.search.judge import judge_by
from kvfuzz.subjects.loading import Options, load
from kvfuzz.subjects.protocol import Factory


@dataclass(frozen=True)
class Replayed:
    """What became of one file: the verdict of running it again, or the error that kept it from
    being run."""

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


def files_of(paths: Sequence[Path]) -> list[Path]:
    """The files that `paths` stand for: of a directory, its `*.json`, sorted.

    Raises UsageError for a path that does not exist.
    """
    files: list[Path] = []
    for path in paths:
        if not path.exists():
            raise UsageError(f"there is no counterexample {path}")
        files += sorted(path.glob("*.json")) if path.is_dir() else [path]
    return files


def replay(
    path: Path | str,
    *,
    subject: str | None = None,
    device: str | None = None,
    announce: Callable[[Counterexample, str], None] | None = None,
) -> Replayed:
    """Run the counterexample at `path` again, on the subject it names or on `subject`.

    `announce` is called before the subject is imported. What cannot be run is told in `error`.
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
    """Where the counterexample at `path` goes wrong (`kvfuzz.locate`), on the subject it names or
    on `subject`; with the subject's name and the case that was run. Raises KvfuzzError for what
    cannot be run."""
    found = read(path)
    name = subject or found.subject
    if announce is not None:
        announce(found, name)
    try:
        location = _in_float64(found, name, device, strict)
        if location is not None and location.located:
            return name, found.case, location
        factory, case = _factory_of(found, name, device)
        return name, case, _noted(locate(factory, case, strict=strict), found)
    except KvfuzzError as error:
        raise UsageError(f"{path}: {error}") from error


def _noted(location: Location, found: Counterexample) -> Location:
    """`location`, with a note where the counterexample is about another law than agreement."""
    law = found.verdict.get("law", "agreement")
    if location.first is not None or law == "agreement":
        return location
    note = (
        f"it breaks the law {law}, which compares other runs than the cached and the uncached one: "
        "see `kvfuzz replay`"
    )
    return replace(location, notes=(*location.notes, note))


def _in_float64(
    found: Counterexample, name: str, device: str | None, strict: bool
) -> Location | None:
    """Where it goes wrong in the float64 lane; None for a subject that has none."""
    case = replace(found.case, dtype="float64")
    with suppress(UsageError, InvalidSubject):
        factory, case = _factory_of(replace(found, case=case), name, device)
        if "float64" in factory.dtypes:
            return locate(factory, case, strict=strict)
    return None


def exit_code(replayed: Sequence[Replayed]) -> int:
    """2 if a file could not be run, else 1 if one diverges, else 3 if none could be compared."""
    if any(item.error for item in replayed):
        return 2
    statuses = {item.verdict.status for item in replayed if item.verdict}
    if "diverged" in statuses:
        return 1
    return 0 if "agreed" in statuses else 3


def _run(path: Path, found: Counterexample, name: str, device: str | None) -> Replayed:
    factory, case = _factory_of(found, name, device)
    law = found.verdict.get("law", "agreement")
    verdict = judge_by(str(law), factory.subject(case), case, factory.name)
    if not verdict.diverged:
        return Replayed(path, found, name, verdict)
    precise = _in_float64(found, name, device, strict=False) if law == "agreement" else None
    located = precise is not None and precise.first is not None
    explanation = explain(factory, case, verdict, locating=not located)
    if located:
        explanation = replace(explanation, location=precise)
    return Replayed(path, found, name, verdict, explanation)


def _factory_of(found: Counterexample, name: str, device: str | None) -> tuple[Factory, Case]:
    where = device or str(found.environment.get("device", "cpu"))
    return _fitted(name, where, found.case, another=name != found.subject)


def _fitted(name: str, device: str, case: Case, another: bool) -> tuple[Factory, Case]:
    """The factory called `name`, built as `case` says, and the case.

    `another` subject than the recorded one may not know the recorded settings or dtype; it then
    runs the same tokens and schedule with its own.
    """
    try:
        return load(name, Options(device=device, dtype=case.dtype, config=case.config)), case
    except UsageError:
        if not another:
            raise
    factory = load(name, Options(device=device))
    return factory, replace(case, config=factory.first_config(), dtype=factory.dtypes[0])
