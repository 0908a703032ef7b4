"""A shrunk failing case with its verdict, in a file that `kvfuzz replay` accepts."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from kvfuzz.case.case import Case
from kvfuzz.case.files import write_json
from kvfuzz.case.verdict import Verdict
from kvfuzz.errors import InvalidCase, InvalidCounterexample, UsageError, one_line

SCHEMA = 1
BEFORE = "before"
"""The key of the cases that have to run first, where a case does not diverge alone."""
TRIED = "tried"
"""The key, in a file that is not fully shrunk, of the versions that were judged already."""


@dataclass(frozen=True)
class Counterexample:
    """A failing case and what was seen.

    `subject` is the name that finds the subject again; `verdict` and `located` are JSON;
    `environment` holds versions, thread count and device (`kvfuzz.case.environment`).
    """

    subject: str
    case: Case
    verdict: Mapping[str, Any]
    located: Mapping[str, Any] | None = None
    environment: Mapping[str, Any] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        return {
            "schema": SCHEMA,
            "kind": "kvfuzz counterexample",
            **self.environment,
            "subject": self.subject,
            "case": self.case.to_json(),
            "verdict": dict(self.verdict),
            "located": dict(self.located) if self.located else None,
        }

    @property
    def before(self) -> list[Case]:
        """The cases to run before this one, in the same process. Raises InvalidCase."""
        kept = self.environment.get(BEFORE)
        return [Case.from_json(one) for one in kept] if isinstance(kept, list) else []

    @property
    def is_minimal(self) -> bool:
        """Whether it is fully shrunk, as far as the file says."""
        return TRIED not in self.environment

    @property
    def tried(self) -> list[str]:
        """The digests of the versions that were judged when the shrinking stopped."""
        tried = self.environment.get(TRIED)
        whole = isinstance(tried, list) and all(isinstance(each, str) for each in tried)
        return list(tried) if tried and whole else []

    def unfinished(self, tried: Iterable[str] = ()) -> Counterexample:
        """Returns this as one that is not fully shrunk, of which the versions `tried` were judged
        (`kvfuzz.search.shrink.Shrunk`)."""
        return replace(self, environment={**self.environment, TRIED: sorted(tried)})

    @property
    def digest(self) -> str:
        """Eight hex digits of the subject and the case."""
        identity = json.dumps([self.subject, self.case.to_json()], sort_keys=True)
        return hashlib.sha256(identity.encode()).hexdigest()[:8]

    def path_in(self, folder: Path, more: str = "") -> Path:
        """Returns the path of this in `folder`: its digest, with `more` to follow."""
        return folder / f"{self.digest}{more}.json"

    def save(self, folder: Path, more: str = "") -> Path:
        """Writes this to its path in `folder`, and returns the path."""
        path = self.path_in(folder, more)
        write_json(path, self.to_json())
        return path


def make_counterexample(
    subject: str,
    case: Case,
    verdict: Verdict,
    located: Mapping[str, Any] | None,
    device: str,
    twin: bool = True,
) -> Counterexample:
    """Makes a counterexample of what was just seen, with the present environment, and whether there
    was a float64 twin."""
    from kvfuzz.case.environment import environment_of  # with torch, which reading does not need

    environment = {**environment_of(device), **({} if twin else {"twin": False})}
    return Counterexample(subject, case, verdict.to_json(), located, environment)


def files_in(paths: Sequence[Path], recursive: bool = False) -> list[Path]:
    """Returns `paths`, with each directory replaced by its `*.json` files, sorted; with `recursive`
    also by those of its folders. Raises UsageError for a path that does not exist."""
    files: list[Path] = []
    for path in paths:
        if not path.exists():
            raise UsageError(f"there is no counterexample {path}")
        pattern = "**/*.json" if recursive else "*.json"
        files += sorted(path.glob(pattern)) if path.is_dir() else [path]
    return files


def read(path: Path) -> Counterexample:
    """Reads the counterexample in the file at `path`. Raises InvalidCounterexample, in one line
    that names the file and what is wrong with it."""
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
        raise InvalidCounterexample(f"cannot read {path}: {reason}") from None
    if not text.strip():
        raise InvalidCounterexample(f"{path} is empty")
    try:
        data = json.loads(text)
    except (ValueError, RecursionError) as error:  # ValueError also for numbers of 5,000 digits
        raise InvalidCounterexample(f"{path} is not JSON: {one_line(error)}") from None
    if not isinstance(data, dict) or data.get("kind") != "kvfuzz counterexample":
        raise InvalidCounterexample(
            f'{path} is not a counterexample: it has no "kind": "kvfuzz counterexample"'
        )
    return _from_json(path, data)


def _from_json(path: Path, data: dict[str, Any]) -> Counterexample:
    schema = data.get("schema")
    if isinstance(schema, bool) or not isinstance(schema, int) or schema < 1:
        raise InvalidCounterexample(f"{path} has schema {schema!r}, expected {SCHEMA}")
    if schema > SCHEMA:
        raise InvalidCounterexample(
            f"{path} has schema {schema}, newer than this kvfuzz reads ({SCHEMA}): upgrade kvfuzz"
        )
    subject = data.get("subject")
    # Printed before it is imported, so it must not be able to print anything else.
    if not isinstance(subject, str) or not subject or not subject.isprintable():
        raise InvalidCounterexample(f"{path} names no subject, got {subject!r}")
    try:
        case = Case.from_json(data.get("case"))
        if isinstance(before := data.get(BEFORE), list):
            before[:] = [Case.from_json(one).to_json() for one in before]
    except InvalidCase as error:
        raise InvalidCounterexample(f"{path}: {error}") from None
    known = ("schema", "kind", "subject", "case", "verdict", "located")
    verdict, located = data.get("verdict"), data.get("located")
    return Counterexample(
        subject,
        case,
        verdict if isinstance(verdict, dict) else {},
        located if isinstance(located, dict) else None,
        {key: value for key, value in data.items() if key not in known},
    )
