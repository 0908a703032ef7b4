"""Where a case goes wrong: the first state that differs, and what is known about it."""

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
    """A line of source: `file` from its package's folder on, the `line` number from 1, its `text`,
    and the `function` that it is in."""

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

    `missing` tells that the examined path holds fewer or more positions there than it should: then
    `difference` is inf. `module` is the qualified name of the torch module that computed it, None
    where there is none; `source` the line that did, and `partner` the line that computed the same
    in the path that it is compared with, where that is another; `caller` the line of the module's
    forward that led to `source`, where it is in another function. Positions, rows and channels
    are -1 where the state has none.
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

    @property
    def excess(self) -> float:
        """difference / allowed."""
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

    `first` is the first state that differs, None where none does. `cause` is one of the words of
    `kvfuzz.localize.causes`, and `advice` what to look at first, in a sentence. `evidence` says
    which of the positions, the mask, the keys and values of earlier positions and of the new tokens
    differ or agree. `suspect` is the path to suspect. `cells` are the map of differences, `latent`
    states that differ while the logits agree. `cost` is what locating took, in times the two plain
    runs of the case. `notes` say what could not be seen.
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
    def located(self) -> bool:
        """Whether there is a state to look at."""
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
        """The first divergence and what is said about it, for a counterexample; None if there is
        none."""
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
    """The sites that differ though the logits agree."""
    largest: dict[tuple[int, str], float] = {}
    for cell in map_:
        if cell.excess > 1:
            place = cell.step, cell.site
            largest[place] = max(largest.get(place, 0.0), cell.excess)
    sites = {Site.parse(name).kind for _, name in largest}
    reason = _harmless(sites)
    return tuple(Latent(step, site, excess, reason) for (step, site), excess in largest.items())


def _harmless(kinds: set[str]) -> str:
    if kinds == {"cache"}:
        return (
            "the cache holds something else, and attention gives the same: its entries may be in "
            "another order, the same for keys and values"
        )
    if kinds <= {"kv", "cache"}:
        return (
            "queries, keys and values differ, and attention gives the same: one may undo the other"
        )
    return "a later state agrees again: another difference may undo this one"


def short_path(filename: str) -> str:
    """`filename` from its package's folder on; a file outside packages from the current folder on,
    where it is below that, else its name alone."""
    path = Path(filename)
    root = path.parent
    while (root / "__init__.py").exists():
        root = root.parent
    if root != path.parent:
        return str(path.relative_to(root))
    here = Path.cwd()
    return str(path.relative_to(here)) if path.is_relative_to(here) else path.name
