"""What a campaign found, as plain data."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from kvfuzz.case.case import Case
from kvfuzz.case.files import read_json
from kvfuzz.errors import UsageError
from mutants.mutant import STATES

NOT_KILLED = ("survived", "unreached", "timed_out")
DECIDED = ("killed", *NOT_KILLED)
FAILED = (*NOT_KILLED, "invalid")
OUTSIDE = tuple(state for state in STATES if state not in DECIDED)
"""The states outside the score, which are listed after it."""
KIND = "kvfuzz score"
SCHEMA = 1


def read_report(path: Path, name: str = "") -> dict[str, Any]:
    """Returns the JSON report of a score at `path`, which `kvfuzz score --json` wrote. `name` is
    what the error calls it. Raises UsageError if it is another file or has another schema."""
    data, name = read_json(path, name.partition(" ")[0]), name or str(path)
    if not isinstance(data, dict) or data.get("kind") != KIND:
        raise UsageError(f'{name} is not a report of kvfuzz score --json: no "kind": "{KIND}"')
    if data.get("schema") != SCHEMA:
        raise UsageError(f"{name} has schema {data.get('schema')!r}; this kvfuzz reads {SCHEMA}")
    return data


@dataclass(frozen=True)
class Result:
    """The result of one mutant, as plain data.

    `killed_by` is the index of the first killing case, `kills` the indices of all (one, unless this
    is a matrix), `laws` the law that each breaks. `ran` counts the cases that ran, `raised` those
    that raised, `reached` the calls of the replaced functions, `calls` the forward calls. `excess`
    is the largest |difference| / tolerance of the first kill. `site` is where the witness first
    differs, `witness` that case as counterexample JSON, `map` its differences by site and position.
    `declared_kills` says whether the witness that the mutant declares kills it as well; None if
    that was not asked.
    """

    id: str
    operator: str
    state: str
    declared_site: str | None = None
    site: str | None = None
    killed_by: int | None = None
    kills: tuple[int, ...] = ()
    laws: tuple[str, ...] = ()
    ran: int = 0
    raised: int = 0
    reached: int = 0
    calls: int = 0
    excess: float = 0.0
    reason: str | None = None
    seconds: float = 0.0
    witness: dict[str, Any] | None = None
    map: tuple[dict[str, Any], ...] = ()
    declared_kills: bool | None = None

    @property
    def killed_law(self) -> str | None:
        """The law that the first kill breaks."""
        return self.laws[0] if self.laws else None

    def to_json(self) -> dict[str, Any]:
        """Returns its fields. They are plain data already, and large: they are not copied."""
        return dict(vars(self))

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Result:
        """Returns the result that `to_json` gave, after a round trip through JSON."""
        tuples = {name: tuple(data[name]) for name in ("kills", "laws", "map")}
        return cls(**{**data, **tuples})


NOT_BEGUN = "the campaign's time is over"
"""The reason of a mutant that did not begin before the campaign's time was over."""


@dataclass(frozen=True)
class MutantOutcome:
    """The result of one mutant, and whether its process can go on.

    `changed` says that the mutant left the subject changed: later results of this process would be
    wrong. `unsound` says that the clean subject itself diverges: so would those of any process.
    """

    result: Result
    changed: str | None = None
    unsound: str | None = None

    @property
    def why_last(self) -> str | None:
        """Why later results of the same process would be wrong; None if they are right."""
        return self.unsound or self.changed

    def to_json(self) -> dict[str, Any]:
        return {
            "result": self.result.to_json(),
            "changed": self.changed,
            "unsound": self.unsound,
        }

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> MutantOutcome:
        return cls(Result.from_json(data["result"]), data["changed"], data["unsound"])


@dataclass(frozen=True)
class Score:
    """`verdict` is killed (all of them), survived (some were not) or inconclusive (no score, for
    the `reason`). `percent` is killed / (killed + survived + unreached + timed out). `environment`
    is where it was made, `command` what gives the same table again, `calibration` the file of the
    calibration in force.

    `identity` is that of the campaign (`mutants.campaign.campaign.identity_of`), `listed` are all
    the mutants of it, of which the Kth of N parts were judged if this is the score of a `shard`."""

    verdict: str
    percent: float | None
    subject: str
    seed: int
    cases: tuple[Case, ...]
    results: tuple[Result, ...] = ()
    placebos: tuple[Result, ...] = ()
    canaries: tuple[Result, ...] = ()
    matrix: bool = False
    reason: str | None = None
    seconds: float = 0.0
    counts: dict[str, int] = field(default_factory=dict)
    environment: dict[str, Any] = field(default_factory=dict)
    command: str = ""
    calibration: str | None = None
    identity: dict[str, Any] = field(default_factory=dict)
    listed: tuple[str, ...] = ()
    shard: tuple[int, int] | None = None

    def to_json(self, witnesses: Mapping[str, Path] | None = None) -> dict[str, Any]:
        """Returns the report; `witnesses` are the files of the shrunk cases, by mutant id.

        `unkept`, `sampled` and `by_schedule` are empty, and go with the next release.
        """
        written = witnesses or {}
        return {
            "schema": SCHEMA,
            "kind": KIND,
            "verdict": self.verdict,
            "score": self.percent,
            "reason": self.reason,
            "counts": self.counts,
            "subject": self.subject,
            "seed": self.seed,
            "matrix": self.matrix,
            "unkept": [],
            "command": self.command,
            "calibration": self.calibration,
            "sampled": {},
            **self.environment,
            "seconds": round(self.seconds, 3),
            "mutants": [_result_json(result, written) for result in self.results],
            "placebos": [_result_json(result, written) for result in self.placebos],
            "canaries": [_result_json(result, written) for result in self.canaries],
            "shard": "{}/{}".format(*self.shard) if self.shard else None,
            "listed": list(self.listed),
            "identity": self.identity,
            "cases": [case.to_json() for case in self.cases],
            "by_schedule": {},
        }


def conclude(results: Sequence[Result], reason: str | None) -> dict[str, Any]:
    """Returns the fields `verdict`, `percent`, `reason`, `counts` and `results` (sorted by id) of a
    Score. With a `reason` there is no score."""
    results = sorted(results, key=lambda result: result.id)
    counts = count_states(results)
    decided = [result for result in results if result.state in DECIDED]
    if decided and all(result.reason == NOT_BEGUN for result in decided):
        reason = reason or "no mutant was judged in the available time"
    percent = None if reason else percent_killed(counts)
    if percent is None:
        verdict, reason = "inconclusive", reason or "no mutant could be decided"
    else:
        verdict = "survived" if any(counts[state] for state in FAILED) else "killed"
    return {
        "verdict": verdict,
        "percent": percent,
        "reason": reason,
        "counts": counts,
        "results": tuple(results),
    }


def percent_killed(counts: dict[str, int]) -> float | None:
    """Returns 100 x killed / (killed + survived + unreached + timed out), or None for 0 / 0. All
    other states are outside the score."""
    decided = sum(counts[state] for state in DECIDED)
    return 100 * counts["killed"] / decided if decided else None


def percent_text(value: float | None, places: int) -> str:
    """Returns a percentage, rounded down so that 100 % means all; `-` for None."""
    if value is None:
        return "-"
    return f"{math.floor(value * 10**places + 1e-9) / 10**places:.{places}f} %"


def count_states(results: Sequence[Result]) -> dict[str, int]:
    """Returns the number of results in each state."""
    return {state: sum(result.state == state for result in results) for state in STATES}


def _result_json(result: Result, written: Mapping[str, Path]) -> dict[str, Any]:
    """Returns a result with the path of its witness, and the witness itself."""
    path = written.get(result.id)
    return {
        **result.to_json(),
        "counterexample": result.witness,
        "kills": list(result.kills),
        "laws": list(result.laws),
        "killed_law": result.killed_law,
        "seconds": round(result.seconds, 3),
        "witness": str(path) if path else None,
    }
