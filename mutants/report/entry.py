"""One mutant of a score, as the HTML page shows it."""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kvfuzz.case.case import Case
from kvfuzz.case.features import FAMILIES, family
from kvfuzz.case.schedule import entry_text
from kvfuzz.localize.causes import ordinal
from kvfuzz.report.map import DifferenceTable, difference_table
from kvfuzz.subjects.trace import Site
from mutants.campaign.result import NOT_KILLED, Result, Score
from mutants.mutant import Mutant
from mutants.report.advice import fuzz_command, suggest_kill
from mutants.report.listing import Listing, fault_listing, real_listings

ISSUE = re.compile(r"([A-Za-z0-9_.-]+/[A-Za-z0-9_.-]+)#(\d+)")

Square = tuple[str, str]
"""Whether a case killed the mutant (`kill`, `spared` or `unrun`), and the same in words."""


@dataclass(frozen=True)
class Family:
    """The cases of one family of schedules, and whether each killed the mutant."""

    name: str
    squares: tuple[Square, ...]

    @property
    def kills(self) -> int:
        return sum(kind == "kill" for kind, _ in self.squares)


@dataclass(frozen=True)
class Witness:
    """The case that kills a mutant, with its verdict and location; `how` it was made from the case
    that was drawn, and the command that shrinks it in full."""

    case: Case
    how: str
    shrink: str | None
    seen: dict[str, Any]
    located: dict[str, Any] | None
    replay: str | None
    map: DifferenceTable | None

    @property
    def place(self) -> str:
        """Where the logits first differ."""
        first = self.seen["first"]
        return (
            f"step {first['step'] + 1} of {len(self.case.schedule)} ({first['kind']}), row "
            f"{first['row']}, position {first['position']} (the {ordinal(first['position'])} token)"
        )

    @property
    def look_first_at(self) -> str:
        """What to inspect first; empty if the witness was not located."""
        return str((self.located or {}).get("look_first_at") or "")

    @property
    def source(self) -> str:
        """The source line, `file:line`, that made the first state that differs."""
        located = self.located or {}
        return str(located.get("source") or f"{located.get('file')}:{located.get('line')}")


@dataclass(frozen=True)
class Entry:
    """A result, and the mutant in the library (`known`), None if it is gone."""

    result: Result
    known: Mutant | None
    fault: Listing | None
    real: tuple[Listing, ...]
    killer: Case | None
    families: tuple[Family, ...]
    witness: Witness | None
    remedy: str | None
    fuzz: str

    @property
    def issue(self) -> str | None:
        """The URL of the public report, if `seen_in` names one."""
        found = ISSUE.fullmatch(self.known.seen_in or "") if self.known else None
        return f"https://github.com/{found[1]}/issues/{found[2]}" if found else None

    @property
    def declared(self) -> str | None:
        return prose(self.result.declared_site)

    @property
    def site(self) -> str | None:
        return prose(self.result.site)


def entry(score: Score, result: Result, known: Mutant | None, path: Path | None) -> Entry:
    """Returns the entry of `result`; `path` is the file of its witness."""
    killer = None if result.killed_by is None else score.cases[result.killed_by]
    return Entry(
        result=result,
        known=known,
        fault=fault_listing(known) if known else None,
        real=tuple(real_listings(known)) if known else (),
        killer=killer,
        families=_families(score.cases, result) if score.matrix and result.ran else (),
        witness=_witness(score, result, path) if result.witness else None,
        remedy=suggest_kill(result, known) if result.state in NOT_KILLED else None,
        fuzz=fuzz_command(score, result, known),
    )


def prose(site: str | None) -> str | None:
    """Returns a site, as JSON holds it, in words."""
    return Site.parse(site).prose if site else None


def _families(cases: Sequence[Case], result: Result) -> tuple[Family, ...]:
    """Returns the cases by family, each in the order of running."""
    squares: dict[str, list[Square]] = {}
    kills = set(result.kills)
    for index, case in enumerate(cases):
        kind = "kill" if index in kills else "spared" if index < result.ran else "unrun"
        words = {"kill": "kill", "spared": "no kill", "unrun": "not run"}[kind]
        schedule = " + ".join(map(entry_text, case.schedule))
        text = f"case {index}: {words} ({schedule}, {case.dtype})"
        squares.setdefault(family(case), []).append((kind, text))
    return tuple(Family(name, tuple(squares[name])) for name in FAMILIES if name in squares)


def _witness(score: Score, result: Result, path: Path | None) -> Witness:
    assert result.witness is not None
    assert result.killed_by is not None
    case = Case.from_json(result.witness["case"])
    located = result.witness.get("located")
    made = "shrunk" if score.identity.get("shrink", True) else "cut after the divergence"
    file = shlex.quote(str(path)) if path else None
    return Witness(
        case=case,
        how="as drawn" if case == score.cases[result.killed_by] else made,
        shrink=f"kvfuzz shrink {file}" if file and made != "shrunk" else None,
        seen=result.witness["verdict"],
        located=located,
        replay=f"kvfuzz replay {file}" if file else None,
        map=difference_table(result.map, case, located),
    )
