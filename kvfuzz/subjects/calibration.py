"""Reads and writes calibrations: the rounding of a correct subject, measured on one machine.

A calibration is a regression boundary: the largest |difference| / allowed of clean cases, for each
dtype. Outside float64 it may also widen the allowed difference, by a `leeway` of 2, 4 or 8, for a
device whose arithmetic is coarser than its dtype says (TF32). Float64 is never widened.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from kvfuzz.case.dtypes import DTYPES
from kvfuzz.case.files import read_json
from kvfuzz.errors import UsageError, one_line

KIND = "kvfuzz calibration"
SCHEMA = 1
LEEWAYS = (1.0, 2.0, 4.0, 8.0)
COMFORTABLE = 0.5
"""The largest |difference| / allowed that clean cases may reach."""

# A calibration made in an environment that differs in one of these is not used.
DEPENDS_ON = ("torch", "device", "backend", "threads")

# The former keys of a lane. They are read, and written next to the new ones for one release.
FORMER = {"rows": "positions", "weak_rows": "weak_positions"}


@dataclass(frozen=True, slots=True)
class Lane:
    """The measurement of one dtype: `worst` is the largest |difference| / allowed at a leeway of 1,
    `where` its case, row and position. `leeway` multiplies the allowed difference from then on."""

    dtype: str
    cases: int
    positions: int
    weak_positions: int
    worst: float
    where: Mapping[str, Any]
    leeway: float

    def to_json(self) -> dict[str, Any]:
        """The fields, and those of FORMER, as releases before this one read them."""
        return asdict(self) | {old: getattr(self, new) for old, new in FORMER.items()}


@dataclass(frozen=True, slots=True)
class Calibration:
    """The measurements of `subject` with the user's settings `config`, one lane for each dtype.

    `examples` cases were drawn under `seed`, in `environment` (`kvfuzz.case.environment`). `path`
    is the file it was read from.
    """

    subject: str
    seed: int
    examples: int
    config: Mapping[str, Any]
    lanes: tuple[Lane, ...]
    environment: Mapping[str, Any] = field(default_factory=dict)
    path: str | None = None

    def leeway(self, dtype: str) -> float:
        """Returns the factor of the allowed difference in `dtype`: 1 if it was not measured."""
        return next((lane.leeway for lane in self.lanes if lane.dtype == dtype), 1.0)

    def misfit(
        self, subject: str, config: Mapping[str, Any], environment: Mapping[str, Any]
    ) -> str | None:
        """Says why this calibration does not hold for `subject` with `config` in `environment`;
        None if it does."""
        if subject != self.subject:
            return f"it is a calibration of {self.subject}, not of {subject}"
        if dict(config) != dict(self.config):
            return f"it was made with the settings {self.config}, these are {dict(config)}"
        for name in DEPENDS_ON:
            made, now = self.environment.get(name), environment.get(name)
            if made != now:
                return f"it was made with {name} {made}, this is {now}"
        return None

    def to_json(self) -> dict[str, Any]:
        return {
            "schema": SCHEMA,
            "kind": KIND,
            **self.environment,
            "subject": self.subject,
            "seed": self.seed,
            "examples": self.examples,
            "config": dict(self.config),
            "lanes": [lane.to_json() for lane in self.lanes],
        }


def read(path: Path) -> Calibration:
    """Reads the calibration in the file at `path`. Raises UsageError, which names the file."""
    data = read_json(path)
    return from_json(data, str(path))


def from_json(data: Any, name: str) -> Calibration:
    """Reads what `Calibration.to_json` gave. Raises UsageError, which calls it `name`."""
    if not isinstance(data, dict) or data.get("kind") != KIND:
        raise UsageError(f'{name} is not a calibration: it has no "kind": "{KIND}"')
    if data.get("schema") != SCHEMA:
        raise UsageError(f"{name} has schema {data.get('schema')!r}, this kvfuzz reads {SCHEMA}")
    known = ("schema", "kind", "subject", "seed", "examples", "config", "lanes")
    try:
        lanes = tuple(_lane(lane) for lane in data["lanes"])
        if not lanes or len({lane.dtype for lane in lanes}) < len(lanes):
            raise ValueError("it should have one lane for each dtype")
        return Calibration(
            str(data["subject"]),
            int(data["seed"]),
            int(data["examples"]),
            dict(data["config"]),
            lanes,
            {key: value for key, value in data.items() if key not in known},
            name,
        )
    except (KeyError, TypeError, ValueError, OverflowError) as error:
        raise UsageError(f"{name} is not a calibration: {one_line(error)}") from None


def leeway_for(worst: float) -> float | None:
    """Returns the least of LEEWAYS that brings `worst`, measured at 1, to COMFORTABLE; None if none
    does."""
    return next((leeway for leeway in LEEWAYS if worst <= leeway * COMFORTABLE), None)


def _lane(data: Mapping[str, Any]) -> Lane:
    lane = Lane(**{FORMER.get(key, key): value for key, value in dict(data).items()})
    if lane.dtype not in DTYPES:
        raise ValueError(f"there is no dtype {lane.dtype!r}")
    # Only leeways that calibrate would have written: a file must not widen the bound at will.
    wide = lane.dtype == "float64" and lane.leeway != 1
    if wide or isinstance(lane.leeway, bool) or lane.leeway != leeway_for(lane.worst):
        raise ValueError(f"{lane.dtype} has a leeway of {lane.leeway!r} for {lane.worst!r}")
    return lane
