"""What a comparison found, as plain data."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, Literal

Status = Literal["agreed", "weak", "vacuous", "diverged", "discarded"]


@dataclass(frozen=True, slots=True)
class Difference:
    """The largest excess at the first column where the paths differ.

    `cached` and `uncached` are the logits of vocabulary entry `token`, read after column `column`
    of row `row` of the token table, which step `step` (counted from 0, of kind `kind`) has fed; it
    is at `position` of the row's own tokens.
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
    column: int = 0


@dataclass(frozen=True, slots=True)
class Impact:
    """What a divergence does to predictions; it is told beside the verdict and never decides it,
    since these measures are blind to faults that logits show.

    Of the `positions` that are finite in both paths: at how many the most likely token is another;
    the largest KL divergence of the cached from the uncached prediction, in nats; and
    |cached - uncached| / |uncached|, in the 2-norm over all logits.
    """

    positions: int
    argmax_flips: int
    kl: float | None
    relative_l2: float | None


@dataclass(frozen=True, slots=True)
class Verdict:
    """What was found, and on what evidence. `status` is

    - `agreed`: no difference beyond what rounding may do;
    - `weak`: none either, but rounding may do so much that this says nothing;
    - `vacuous`: agreed, but on a case that a corrupted cache would have passed as well;
    - `diverged`;
    - `discarded`: nothing could be compared.

    `positions` is the number of positions compared over all rows of the batch, `weak_positions` of
    those that say nothing; `excess` the largest |difference| / allowed, above 1 when diverged;
    `basis` where the allowed comes from (`measured`, `constant` or `declared`); `worst` the row and
    the column of the largest excess; `differences` and `allowed` hold each column's largest
    |difference| and allowance, [rows][columns] of the token table. `error` is what a path raised;
    `precision` what the cached path rounds and the uncached one does not; `reason` says why a case
    is weak, vacuous or discarded. `prefixwise` is true when the uncached path gave other logits for
    a prefix alone than for the same prefix inside a longer run, so that one uncached run per prefix
    was made and is what the cached path was judged against. `law` is the law that was judged
    (`kvfuzz.oracle.laws`), and `finding` says what breaks one that is not agreement.
    """

    status: Status
    positions: int = 0
    weak_positions: int = 0
    excess: float = 0.0
    dtype: str | None = None
    basis: str | None = None
    worst: tuple[int, int] | None = None
    first: Difference | None = None
    impact: Impact | None = None
    error: str | None = None
    error_step: int | None = None
    precision: str | None = None
    reason: str | None = None
    prefixwise: bool = False
    law: str = "agreement"
    finding: str | None = None
    differences: tuple[tuple[float, ...], ...] = ()
    allowed: tuple[tuple[float, ...], ...] = ()

    @property
    def diverged(self) -> bool:
        return self.status == "diverged"

    def to_json(self) -> dict[str, Any]:
        # `rows` and `weak_rows` are the keys of before, kept for one release.
        former = {"rows": self.positions, "weak_rows": self.weak_positions}
        return asdict(self) | former
