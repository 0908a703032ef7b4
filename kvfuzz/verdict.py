"""What a comparison found, as plain data."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, Literal

Status = Literal["agreed", "diverged", "discarded"]


@dataclass(frozen=True, slots=True)
class Difference:
    """The largest excess at the first position where the paths differ.

    `cached` and `uncached` are the logits of vocabulary entry `token`, read after position
    `position` of row `row`, which step `step` (counted from 0, of kind `kind`) has fed.
    """

    step: int
    kind: str
    row: int
    position: int
    token: int
    cached: float
    uncached: float
    difference: float
    allowed: float


@dataclass(frozen=True, slots=True)
class Verdict:
    """`agreed`, `diverged`, or `discarded` (nothing could be compared), and the evidence.

    `rows` is the number of positions compared over all rows of the batch; `excess` the largest
    |difference| / allowed, above 1 when diverged; `differences` and `allowed` hold each position's
    largest |difference| and allowance, [batch][time]. `error` is what a path raised; `reason` says
    why a case was discarded. `prefixwise` is true when the uncached path gave other logits for a
    prefix alone than for the same prefix inside a longer run, so that one uncached run per prefix
    was made and is what the cached path was judged against.
    """

    status: Status
    rows: int = 0
    excess: float = 0.0
    dtype: str | None = None
    first: Difference | None = None
    error: str | None = None
    error_step: int | None = None
    reason: str | None = None
    prefixwise: bool = False
    differences: tuple[tuple[float, ...], ...] = ()
    allowed: tuple[tuple[float, ...], ...] = ()

    @property
    def diverged(self) -> bool:
        return self.status == "diverged"

    def to_json(self) -> dict[str, Any]:
        return asdict(self)
