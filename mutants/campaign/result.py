"""What a campaign found, as plain data."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from kvfuzz.case.case import Case
from mutants.mutant import STATES

NOT_KILLED = ("survived", "unreached", "timed_out")
DECIDED = ("killed", *NOT_KILLED)
FAILED = (*NOT_KILLED, "invalid")
OUTSIDE = tuple(state for state in STATES if state not in DECIDED)
"""The states outside the score, which are listed after it."""
KIND = "kvfuzz score"
SCHEMA = 1


@dataclass(frozen=True)
class Result:
    """What became of one mutant, as plain data.

    `killed_by` is the index of the case that killed it first and `kills` of all that did (one,
    unless every case was run), and `laws` what each broke; `ran` the cases it met, of which
    `raised` raised; `reached` the calls of its targets and `calls` those of the subject; `excess`
    the largest |difference| / allowed of the first kill. `site` is where the witness first
    differs, `witness` the shrunk case as counterexample JSON, `map` its differences by site and
    position.
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

    @property
    def killed_law(self) -> str | None:
        """The law by which it was first killed."""
        return self.laws[0] if self.laws else None

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Result:
        """What `to_json` gave, after a journey as JSON."""
        tuples = {name: tuple(data[name]) for name in ("kills", "laws", "map")}
        return cls(**{**data, **tuples})


NOT_BEGUN = "the campaign's time is over"
"""The reason of a mutant that is timed out since there was no time left to begin it."""


@dataclass(frozen=True)
class MutantOutcome:
    """What became of a mutant; and, where it left the subject `changed` or that was `unsound`
    before it, why nothing after it means anything: in the same process, or in any."""

    result: Result
    changed: str | None = None
    unsound: str | None = None

    @property
    def last(self) -> str | None:
        """Why nothing after it in the same process means anything; None if it does."""
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
        """As the report holds it; `witnesses` are the files that the shrunk cases went to.

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


def verdict_on(results: Sequence[Result], reason: str | None) -> dict[str, Any]:
    """The verdict, percent, reason and counts of a Score of `results`, or of none for the
    `reason`."""
    counts = count_states(results)
    decided = [result for result in results if result.state in DECIDED]
    if decided and all(result.reason == NOT_BEGUN for result in decided):
        reason = reason or "no mutant was judged in the time that there was"
    percent = None if reason else percent_killed(counts)
    if percent is None:
        verdict, reason = "inconclusive", reason or "no mutant could be decided"
    else:
        verdict = "survived" if any(counts[state] for state in FAILED) else "killed"
    return {"verdict": verdict, "percent": percent, "reason": reason, "counts": counts}


def percent_killed(counts: dict[str, int]) -> float | None:
    """100 x killed / (killed + survived + unreached + timed out); None where that is of nothing.

    What was loud, invalid or equivalent is printed beside the score, never inside it.
    """
    decided = sum(counts[state] for state in DECIDED)
    return 100 * counts["killed"] / decided if decided else None


def percent_text(value: float | None, places: int) -> str:
    """A percentage rounded down, so that 100 % means all; `-` where there is none."""
    if value is None:
        return "-"
    return f"{math.floor(value * 10**places + 1e-9) / 10**places:.{places}f} %"


def count_states(results: Sequence[Result]) -> dict[str, int]:
    """The number of results in each state."""
    return {state: sum(result.state == state for result in results) for state in STATES}


def _result_json(result: Result, written: Mapping[str, Path]) -> dict[str, Any]:
    """A result with the path of its witness, and the witness itself."""
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
