"""What a campaign found, as plain data."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from kvfuzz.case import Case
from mutants.mutant import STATES

NOT_KILLED = ("survived", "unreached", "timed_out")
DECIDED = ("killed", *NOT_KILLED)


@dataclass(frozen=True)
class Result:
    """What became of one mutant, as plain data.

    `killed_by` is the index of the first case that killed it and `kills` all of them (one, unless
    every case was run), and `laws` what each broke; `ran` the cases it met, of which `raised`
    raised; `reached` the calls of its targets; `excess` the largest |difference| / allowed of the
    first kill. `site` is where the witness first differs, `witness` the shrunk case as
    counterexample JSON, `map` its differences by site and position.
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
    excess: float = 0.0
    reason: str | None = None
    seconds: float = 0.0
    witness: dict[str, Any] | None = None
    map: tuple[dict[str, Any], ...] = ()

    @property
    def killed_law(self) -> str | None:
        """The law by which it was first killed."""
        return self.laws[0] if self.laws else None


@dataclass(frozen=True)
class Score:
    """`verdict` is killed (all of them), survived (some were not, or not by what they declare) or
    inconclusive (no score, for the `reason`). `percent` is killed / (killed + survived + unreached
    + timed out). `environment` is where it was made, `command` what gives the same table again,
    `calibration` the file of the calibration in force. With `matrix`, `unkept` has what a mutant
    declares and no kill bears out, as its id and a word."""

    verdict: str
    percent: float | None
    subject: str
    seed: int
    cases: tuple[Case, ...]
    results: tuple[Result, ...] = ()
    placebos: tuple[Result, ...] = ()
    matrix: bool = False
    reason: str | None = None
    seconds: float = 0.0
    counts: dict[str, int] = field(default_factory=dict)
    environment: dict[str, Any] = field(default_factory=dict)
    command: str = ""
    calibration: str | None = None
    unkept: tuple[tuple[str, str], ...] = ()

    def to_json(self, witnesses: dict[str, Path] | None = None) -> dict[str, Any]:
        """As the report holds it; `witnesses` are the files that the shrunk cases went to."""
        written = witnesses or {}
        return {
            "verdict": self.verdict,
            "score": self.percent,
            "reason": self.reason,
            "counts": self.counts,
            "subject": self.subject,
            "seed": self.seed,
            "matrix": self.matrix,
            "unkept": [{"id": name, "declares": word} for name, word in self.unkept],
            "command": self.command,
            "calibration": self.calibration,
            **self.environment,
            "seconds": round(self.seconds, 3),
            "mutants": [_result_json(result, written) for result in self.results],
            "placebos": [_result_json(result, written) for result in self.placebos],
            "cases": [case.to_json() for case in self.cases],
        }


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


def counted(results: list[Result]) -> dict[str, int]:
    """The number of results in each state."""
    return {state: sum(result.state == state for result in results) for state in STATES}


def _result_json(result: Result, written: dict[str, Path]) -> dict[str, Any]:
    """A result with the path of its witness; the witness itself is in that file."""
    path = written.get(result.id)
    return {
        **asdict(result),
        "kills": list(result.kills),
        "laws": list(result.laws),
        "killed_law": result.killed_law,
        "seconds": round(result.seconds, 3),
        "witness": str(path) if path else None,
    }
