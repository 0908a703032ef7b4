"""Says which boundaries of a subject the cases of a hunt have crossed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from kvfuzz.search.strategies import Space
from kvfuzz.subjects.boundaries import Boundary


@dataclass(frozen=True)
class Crossing:
    """A boundary, and the `reason` why no cached row crossed it; none if one did."""

    boundary: Boundary
    reason: str | None = None

    @property
    def text(self) -> str:
        """The value, and where it comes from in brackets."""
        origin = self.boundary.origin
        return f"{self.boundary.value} ({origin})" if origin else str(self.boundary.value)

    def to_json(self) -> dict[str, Any]:
        return {**vars(self.boundary), "crossed": self.reason is None, "reason": self.reason}


def crossings(space: Space, longest: int) -> tuple[Crossing, ...]:
    """Returns what became of each boundary of `space` in a hunt whose longest cached row had
    `longest` tokens. The limit of the subject counts as crossed by a row that is as long."""
    return tuple(Crossing(one, _reason(one.value, space, longest)) for one in space.boundaries)


def _reason(value: int, space: Space, longest: int) -> str | None:
    needed = value if value == space.limit else value + 1
    if needed <= longest:
        return None
    if space.limit is not None and needed > space.limit:
        return f"beyond max_length {space.limit}"
    if needed > space.reach:
        hunt = "this" if space.reach == space.max_length else "a default"
        return f"beyond what {hunt} hunt draws: --max-length {needed}"
    return "not drawn: a hunt of more cases may"
