"""What a registered decoder can be."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any

from kvfuzz.errors import UsageError

POSITIONS = ("learned", "rope", "alibi", "none")
NORMS = ("layernorm", "rmsnorm")


@dataclass(frozen=True, slots=True)
class DecoderConfig:
    """A decoder-only transformer; the defaults are the source text's.

    `scale` multiplies the standard deviation width^-1/2 of every weight; between 0.7 and 2 faults
    show best. `window` is the number of latest positions a query sees, itself included; None for
    all. Raises UsageError naming the field that is out of range.
    """

    layers: int = 2
    heads: int = 2
    kv_heads: int = 2
    head_dim: int = 2
    vocab_size: int = 64
    max_length: int = 64
    positions: str = "learned"
    norm: str = "layernorm"
    window: int | None = None
    scale: float = 1.0

    def __post_init__(self) -> None:
        for name in ("layers", "heads", "kv_heads", "head_dim", "vocab_size", "max_length"):
            _require(_is_count(getattr(self, name)), name, getattr(self, name), "at least 1")
        _require(
            self.heads % self.kv_heads == 0, "kv_heads", self.kv_heads, f"a divisor of {self.heads}"
        )
        # One feature normalises to nothing but its bias: there is no decoder in that.
        _require(self.width > 1, "head_dim", self.head_dim, "2 or more with a single head")
        _require(self.positions in POSITIONS, "positions", self.positions, " or ".join(POSITIONS))
        _require(self.norm in NORMS, "norm", self.norm, " or ".join(NORMS))
        _require(self.window is None or _is_count(self.window), "window", self.window, "at least 1")
        _require(
            self.positions != "rope" or self.head_dim % 2 == 0,
            "head_dim",
            self.head_dim,
            "even with rope",
        )
        _require(
            isinstance(self.scale, int | float) and self.scale > 0, "scale", self.scale, "positive"
        )

    @property
    def width(self) -> int:
        """The size of the residual stream."""
        return self.heads * self.head_dim

    def with_settings(self, **settings: Any) -> DecoderConfig:
        """This configuration with other `settings`. Raises UsageError for an unknown field."""
        names = [field.name for field in dataclasses.fields(self)]
        for name in settings:
            if name not in names:
                raise UsageError(f"zoo has no setting {name!r}: choose from {', '.join(names)}")
        return dataclasses.replace(self, **settings)


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 1


def _require(holds: bool, name: str, value: Any, wanted: str) -> None:
    if not holds:
        raise UsageError(f"zoo setting {name} should be {wanted}, got {value!r}")
