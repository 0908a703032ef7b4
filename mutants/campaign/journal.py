"""The journal of campaigns: an SQLite file in which nothing that was finished is ever lost.

Each mutant is written down before it begins and again when it is judged, each time in a transaction
of its own, by the one process that gives out the work. So whatever is killed at whatever moment,
what is in the file is what was finished, and a campaign that is resumed judges the rest.
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
from mutants.campaign.campaign import differing, digest_of
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


class Journal:
    """The journal at `path`, made if there is none. Raises UsageError if it cannot be one."""

    def __init__(self, path: Path) -> None:
        self.path = path
        with self._told():
            path.parent.mkdir(parents=True, exist_ok=True)
            # Each statement is a transaction. Another campaign may write at the same time.
            self._file = sqlite3.connect(path, timeout=30, isolation_level=None)
            tables = {name for (name,) in self._file.execute("SELECT name FROM sqlite_master")}
            # One that was killed while it was made has a table of ours at least.
            if tables and tables.isdisjoint(TABLES):
                self.close()
                raise UsageError(f"{path} is the database of another program: name another file")
            self._file.executescript(SCHEMA)

    def newest(self, identity: dict[str, Any]) -> dict[str, Any]:
        """The identity of the campaign that was begun last and differs from `identity` in nothing
        but what a seed changes. Raises UsageError, and says what differs, if there is none."""
        query = "SELECT identity FROM campaign ORDER BY begun DESC"
        with self._told():
            known = [json.loads(text) for (text,) in self._file.execute(query)]
        if not known:
            raise UsageError(f"there is no campaign to resume in {self.path}")
        for other in known:
            if not differing(identity, other, but=("seed", "cases")):
                return dict(other)
        names = differing(identity, known[0], but=("seed", "cases"))
        told = ", ".join(_short(name, known[0].get(name)) for name in names)
        raise UsageError(
            f"no campaign in {self.path} is this one: the last has {told}; begin anew without "
            "--resume"
        )

    def begin(self, identity: dict[str, Any], mutants: Sequence[str], resume: bool) -> str:
        """Write down a campaign of `mutants`, and forget what was judged in it before unless it is
        to `resume`. Returns its digest."""
        digest = digest_of(identity)
        row = digest, json.dumps(identity, sort_keys=True), time.time()
        with self._told(), self._file:
            self._file.execute("BEGIN")
            self._file.execute("INSERT OR REPLACE INTO campaign VALUES (?, ?, ?)", row)
            if not resume:
                self._file.executemany(
                    "DELETE FROM judged WHERE digest = ? AND mutant = ?",
                    [(digest, mutant) for mutant in mutants],
                )
        return digest

    def finished(self, digest: str) -> dict[str, MutantOutcome]:
        """What was judged in the campaign, by mutant."""
        query = "SELECT mutant, judged FROM judged WHERE digest = ? AND judged IS NOT NULL"
        with self._told():
            rows = self._file.execute(query, (digest,)).fetchall()
        return {mutant: MutantOutcome.from_json(json.loads(text)) for mutant, text in rows}

    def note_begun(self, digest: str, mutant: str) -> None:
        """Write down that `mutant` is about to run."""
        with self._told():
            self._file.execute(
                "INSERT OR REPLACE INTO judged VALUES (?, ?, ?, NULL)",
                (digest, mutant, time.time()),
            )

    def note_judged(self, digest: str, judged: MutantOutcome) -> None:
        """Write down what became of a mutant."""
        with self._told():
            self._file.execute(
                "UPDATE judged SET judged = ? WHERE digest = ? AND mutant = ?",
                (json.dumps(judged.to_json()), digest, judged.result.id),
            )

    def close(self) -> None:
        self._file.close()

    @contextmanager
    def _told(self) -> Iterator[None]:
        """Inside, what SQLite or the file system raises becomes one line that names the file."""
        try:
            yield
        except (OSError, sqlite3.Error) as error:
            raise UsageError(
                f"cannot keep the journal {self.path}: {error}; name another --folder, or remove it"
            ) from None


def _short(name: str, value: Any) -> str:
    """What the last campaign had; of what is kept as a digest, that it was another."""
    told = json.dumps(value)[:40]
    return f"other {name}" if _DIGEST.fullmatch(told) else f"{name} {told}"
