"""The result of locating: the first state that differs, and what is known about it."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

from kvfuzz.subjects.trace import Site

Suspect = Literal["cached", "uncached", "unknown"]


@dataclass(frozen=True, slots=True)
class Line:
    """A line of source: `file` relative to the folder that holds its package, the `line` number
    from 1, its `text`, and the `function` that it is in."""

    file: str
    line: int
    text: str = ""
    function: str = ""

    def __str__(self) -> str:
        return f"{self.file}:{self.line}"


@dataclass(frozen=True, slots=True)
class Divergence:
    """A state that differs: at `site`, in `step` (from 0), at `position` of the own tokens of
    `row`, most at `channel` of what the site holds there.

    `missing` says that the examined path holds fewer or more positions there than it should: then
    `difference` is inf. `module` is the qualified name of the torch module that computed the state,
    None where there is none; `source` is the line that did. `partner` is the line that computed the
    same in the path that it is compared with, where that is another; `caller` is the line of the
    module's forward that called the function of `source`, where that is another. `helper` is the
    line that computed the state, if `source` called it wrongly. `candidates` are the lines that may
    be wrong, `source` first, where it cannot be told which is. Positions, rows and channels are -1
    where the state has none.
    """

    step: int
    row: int
    position: int
    site: Site
    difference: float
    allowed: float
    source: Line | None = None
    missing: str | None = None
    channel: int = -1
    module: str | None = None
    operation: str | None = None
    partner: Line | None = None
    caller: Line | None = None
    helper: Line | None = None
    candidates: tuple[Line, ...] = ()

    @property
    def excess(self) -> float:
        """Returns difference / allowed."""
        return self.difference / self.allowed if self.allowed else math.inf

    def to_json(self) -> dict[str, Any]:
        source = asdict(self.source) if self.source else dict.fromkeys(Line.__slots__)
        return {
            "step": self.step,
            "row": self.row,
            "position": self.position,
            "site": str(self.site),
            "layer": self.site.layer,
            "channel": self.channel,
            "module": self.module,
            **source,
            "operation": self.operation,
            "difference": self.difference,
            "allowed": self.allowed,
            "missing": self.missing,
            "partner": str(self.partner) if self.partner else None,
            "caller": asdict(self.caller) if self.caller else None,
            "helper": asdict(self.helper) if self.helper else None,
            "candidates": [str(line) for line in self.candidates],
        }


@dataclass(frozen=True, slots=True)
class SiteDifference:
    """One cell of the map of differences: the largest excess of a site at a position, over the rows
    and the channels."""

    step: int
    site: str
    position: int
    excess: float


@dataclass(frozen=True, slots=True)
class Latent:
    """A state that differs while the logits agree: at `site` in `step`, by `excess` times the
    allowed; `reason` says why it may be harmless."""

    step: int
    site: str
    excess: float
    reason: str


@dataclass(frozen=True)
class Location:
    """All that is known about where a case goes wrong.

    `first` is the first state that differs, None where none does. `cause` is a key of
    `kvfuzz.localize.causes.CAUSES`, and `advice` says in a sentence what to look at first.
    `evidence` says of the positions, the masks, and the keys and values of earlier positions and of
    the new tokens whether they differ or agree. `suspect` is the path to suspect. `cells` are the
    map of differences, `latent` the states that differ while the logits agree. `cost` is the CPU
    time that locating took, in multiples of that of the two plain runs of the case. `notes` say
    what could not be seen.
    """

    first: Divergence | None
    cause: str | None = None
    advice: str | None = None
    evidence: tuple[str, ...] = ()
    suspect: Suspect = "unknown"
    latent: tuple[Latent, ...] = ()
    cells: tuple[SiteDifference, ...] = ()
    notes: tuple[str, ...] = ()
    cost: float | None = None

    @property
    def candidates(self) -> tuple[Line, ...]:
        """The lines that may be wrong, where it cannot be told which is; none where it can."""
        return self.first.candidates if self.first else ()

    @property
    def located(self) -> bool:
        """Whether a state differs, in a first divergence or a latent one."""
        return self.first is not None or bool(self.latent)

    def to_json(self) -> dict[str, Any]:
        return {
            "first": self.first.to_json() if self.first else None,
            "cause": self.cause,
            "look_first_at": self.advice,
            "evidence": list(self.evidence),
            "nearest": [],  # always empty; the key goes with the next release
            "latent": [asdict(latent) for latent in self.latent],
            "suspect": self.suspect,
            "map": [asdict(cell) for cell in self.cells],
            "notes": list(self.notes),
            "cost": self.cost,
        }

    def summary(self) -> dict[str, Any] | None:
        """Returns the first divergence and what is said about it, for a counterexample file; None
        if there is none."""
        if self.first is None:
            return None
        return {
            **self.first.to_json(),
            "cause": self.cause,
            "look_first_at": self.advice,
            "evidence": list(self.evidence),
            "suspect": self.suspect,
        }


def find_latents(map_: Iterable[SiteDifference]) -> tuple[Latent, ...]:
    """Returns the sites that differ although the logits agree, each once with its largest
    excess."""
    largest: dict[tuple[int, str], float] = {}
    for cell in map_:
        if cell.excess > 1:
            place = cell.step, cell.site
            largest[place] = max(largest.get(place, 0.0), cell.excess)
    sites = {Site.parse(name).kind for _, name in largest}
    reason = _why_harmless(sites)
    return tuple(Latent(step, site, excess, reason) for (step, site), excess in largest.items())


def _why_harmless(kinds: set[str]) -> str:
    if kinds == {"cache"}:
        return (
            "the cache differs and attention does not: its entries may be in another order, the "
            "same for keys and values"
        )
    if kinds <= {"kv", "cache"}:
        return "queries, keys and values differ and attention does not: one may undo the other"
    return "a later state agrees again: another difference may undo this one"


def short_path(filename: str) -> str:
    """Returns `filename` relative to the folder that holds its package; a file outside packages
    relative to the current folder if it is below that, else only its name."""
    path = Path(filename)
    root = path.parent
    while (root / "__init__.py").exists():
        root = root.parent
    if root != path.parent:
        return str(path.relative_to(root))
    here = Path.cwd()
    return str(path.relative_to(here)) if path.is_relative_to(here) else path.name
