"""The verdict on a case, as plain data."""

from __future__ import annotations

from dataclasses import asdict, dataclass, fields, replace
from typing import Any, Literal

Status = Literal["agreed", "weak", "vacuous", "diverged", "discarded"]


@dataclass(frozen=True, slots=True)
class Difference:
    """The largest excess in the first column where the paths differ.

    `cached` and `uncached` are the logits of vocabulary entry `token` after column `column` of row
    `row` of the token table; step `step` (from 0, of kind `kind`) fed that column. `position` is
    its position in the row's own text.
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
    """How a divergence changes predictions. It never decides the verdict: these measures miss
    faults that the logits show.

    Over the `positions` that are finite in both paths: `argmax_flips` counts those where the most
    likely token changes; `kl` is the largest KL divergence of the cached from the uncached
    prediction, in nats; `relative_l2` is |cached - uncached| / |uncached| in the 2-norm over all
    logits.
    """

    positions: int
    argmax_flips: int
    kl: float | None
    relative_l2: float | None


@dataclass(frozen=True, slots=True)
class Verdict:
    """The verdict on a case by one law, and the evidence for it. `status` is

    - `agreed`: no difference is larger than rounding explains;
    - `weak`: nor here, but rounding could hide any fault, so agreement says nothing;
    - `vacuous`: agreed, but a corrupted cache would have agreed too;
    - `diverged`;
    - `discarded`: nothing could be compared.

    `positions` counts the positions compared, over all rows, and `weak_positions` those where
    rounding could hide any fault. `excess` is the largest |difference| / allowed, above 1 if
    diverged; `worst` is its row and column; `dtype` is the dtype whose rounding is allowed for, and
    `basis` the source of the allowed difference (`measured`, `own dtype`, `constant`, `declared`
    or `least`; None where no tolerance decided). `differences` and `allowed` hold the values of the
    worst logit of each cell of the token table, [rows][columns]. `first` is the first
    divergence, `impact` its effect on predictions.

    `error` is what a path raised, at step `error_step`; `precision` names a dtype that the cached
    path alone rounds to; `reason` says why a case is weak, vacuous or discarded. `prefixwise` is
    true if the uncached path gave other logits for a prefix alone than inside a longer run, so that
    the reference is one uncached run per prefix. `law` is the law (`kvfuzz.oracle.laws`), and
    `finding` says what breaks it, for any law but agreement.
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

    # The former names of two fields are kept for one release.
    @property
    def rows(self) -> int:
        return self.positions

    @property
    def weak_rows(self) -> int:
        return self.weak_positions

    def to_json(self) -> dict[str, Any]:
        return asdict(self) | {"rows": self.rows, "weak_rows": self.weak_rows}

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Verdict:
        """Returns the verdict that `to_json` gave, after a round trip through JSON."""
        plain = {each.name: data[each.name] for each in fields(cls)}
        return replace(
            cls(**plain),
            worst=data["worst"] and tuple(data["worst"]),
            first=data["first"] and Difference(**data["first"]),
            impact=data["impact"] and Impact(**data["impact"]),
            differences=tuple(map(tuple, data["differences"])),
            allowed=tuple(map(tuple, data["allowed"])),
        )
