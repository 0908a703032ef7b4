"""The journal of campaigns: an SQLite file with every finished mutant, for `--resume`.

The process that hands out the work writes each mutant before it begins and again when it is judged,
each time in its own transaction. So the file is right whenever a process is killed, and a resumed
campaign judges the rest.
"""

from __future__ import annotations

import json
import re
import sqlite3
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from kvfuzz.errors import UsageError
from mutants.campaign.campaign import different_names, digest_of
from mutants.campaign.result import MutantOutcome

NAME = "score.sqlite"
_DIGEST = re.compile(r'"[0-9a-f]{16}"')
SCHEMA = """
CREATE TABLE IF NOT EXISTS campaign (
    digest TEXT PRIMARY KEY, identity TEXT NOT NULL, begun REAL NOT NULL
);
CREATE TABLE IF NOT EXISTS judged (
    digest TEXT NOT NULL REFERENCES campaign, mutant TEXT NOT NULL, begun REAL NOT NULL,
    judged TEXT, PRIMARY KEY (digest, mutant)
);
"""

TABLES = {"campaign", "judged"}
CODE = {"kvfuzz", "code"}
"""The names in an identity that change with the code: its results are not mixed with others."""


class Journal:
    """The journal at `path`, created if there is none. Raises UsageError if it cannot be opened."""

    def __init__(self, path: Path) -> None:
        self.path = path
        with self._errors_in_one_line():
            path.parent.mkdir(parents=True, exist_ok=True)
            # isolation_level=None: each statement is its own transaction. The timeout is for
            # another campaign that writes at the same time.
            self._file = sqlite3.connect(path, timeout=30, isolation_level=None)
            tables = {name for (name,) in self._file.execute("SELECT name FROM sqlite_master")}
            # A journal whose creation was killed may have one of the two tables.
            if tables and tables.isdisjoint(TABLES):
                self.close()
                raise UsageError(f"{path} is a database of another program: name another file")
            self._file.executescript(SCHEMA)

    def has_campaigns(self) -> bool:
        with self._errors_in_one_line():
            return self._file.execute("SELECT 1 FROM campaign").fetchone() is not None

    def newest(self, identity: dict[str, Any]) -> dict[str, Any]:
        """Returns the identity of the last campaign that differs from `identity` only in its seed
        and cases. Raises UsageError, with what differs, if there is none."""
        query = "SELECT identity FROM campaign ORDER BY begun DESC"
        with self._errors_in_one_line():
            known = [json.loads(text) for (text,) in self._file.execute(query)]
        if not known:
            raise UsageError(f"there is no campaign to resume in {self.path}")
        for other in known:
            if not different_names(identity, other, but=("seed", "cases")):
                return dict(other)
        names = different_names(identity, known[0], but=("seed", "cases"))
        if CODE.intersection(names):
            raise UsageError(
                f"the last campaign in {self.path} ran with another version of kvfuzz, of the "
                "mutants or of the subject, and cannot be resumed; run without --resume"
            )
        differences = ", ".join(_short(name, known[0].get(name)) for name in names)
        raise UsageError(
            f"no campaign in {self.path} is this one: the last has {differences}; run without "
            "--resume"
        )

    def begin(self, identity: dict[str, Any], mutants: Sequence[str], resume: bool) -> str:
        """Writes down a campaign of `mutants`, and deletes its earlier outcomes unless `resume`.
        Returns its digest."""
        digest = digest_of(identity)
        row = digest, json.dumps(identity, sort_keys=True), time.time()
        with self._errors_in_one_line(), self._file:
            self._file.execute("BEGIN")
            self._file.execute("INSERT OR REPLACE INTO campaign VALUES (?, ?, ?)", row)
            if not resume:
                self._file.executemany(
                    "DELETE FROM judged WHERE digest = ? AND mutant = ?",
                    [(digest, mutant) for mutant in mutants],
                )
        return digest

    def finished(self, digest: str) -> dict[str, MutantOutcome]:
        """Returns the outcomes of a campaign, by mutant."""
        query = "SELECT mutant, judged FROM judged WHERE digest = ? AND judged IS NOT NULL"
        with self._errors_in_one_line():
            rows = self._file.execute(query, (digest,)).fetchall()
        return {mutant: MutantOutcome.from_json(json.loads(text)) for mutant, text in rows}

    def note_begun(self, digest: str, mutant: str) -> None:
        """Writes down that `mutant` is about to run."""
        with self._errors_in_one_line():
            self._file.execute(
                "INSERT OR REPLACE INTO judged VALUES (?, ?, ?, NULL)",
                (digest, mutant, time.time()),
            )

    def note_judged(self, digest: str, judged: MutantOutcome) -> None:
        """Writes down the outcome of a mutant."""
        with self._errors_in_one_line():
            self._file.execute(
                "UPDATE judged SET judged = ? WHERE digest = ? AND mutant = ?",
                (json.dumps(judged.to_json()), digest, judged.result.id),
            )

    def close(self) -> None:
        self._file.close()

    @contextmanager
    def _errors_in_one_line(self) -> Iterator[None]:
        """Turns errors of SQLite and the file system into a UsageError that names the file."""
        try:
            yield
        except (OSError, sqlite3.Error) as error:
            raise UsageError(
                f"cannot keep the journal {self.path}: {error}; name another --folder, or remove it"
            ) from None


def _short(name: str, value: Any) -> str:
    """Returns the name and value of one part of an identity; for a digest, only the name."""
    text = json.dumps(value)[:40]
    return f"other {name}" if _DIGEST.fullmatch(text) else f"{name} {text}"
