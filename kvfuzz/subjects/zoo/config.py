"""The configuration of a built-in decoder."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from kvfuzz.errors import UsageError

POSITIONS = ("learned", "rope", "alibi", "none")
NORMS = ("layernorm", "rmsnorm")
CACHES = ("concatenated", "static", "ring", "paged", "int8", "prefix")
MIXES = ("uniform", "alternating", "recurrent", "shared_kv", "cross")

ALTERNATING_WINDOW = 3


@dataclass(frozen=True, slots=True)
class DecoderConfig:
    """A decoder-only transformer; the defaults are those of the source text.

    `scale` multiplies the standard deviation width^-1/2 of every weight; faults show best between
    0.7 and 2. `window` is the number of latest positions that a query sees, itself included; None
    for all. `cache` is the kind of storage (`kvfuzz.subjects.zoo.storage`); a ring keeps layers
    without a window whole. `mix` is how the layers mix tokens:

    - `uniform`: all attend, within `window`;
    - `alternating`: the first, third, ... within `window` (ALTERNATING_WINDOW if that is None),
      the others without one;
    - `recurrent`: the first layer by a short convolution and a gated recurrence, the others attend;
    - `shared_kv`: the last of several layers reads the keys and values of the one before it;
    - `cross`: the last of several layers reads the side input of its row in place of the text.

    Raises UsageError naming the field that is out of range.
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
    cache: str = "concatenated"
    mix: str = "uniform"

    def __post_init__(self) -> None:
        for name in ("layers", "heads", "kv_heads", "head_dim", "vocab_size", "max_length"):
            _require(_is_count(getattr(self, name)), name, getattr(self, name), "at least 1")
        _require(
            self.heads % self.kv_heads == 0, "kv_heads", self.kv_heads, f"a divisor of {self.heads}"
        )
        # Normalising one feature leaves nothing but its bias.
        _require(self.width > 1, "head_dim", self.head_dim, "2 or more with a single head")
        _require(self.positions in POSITIONS, "positions", self.positions, " or ".join(POSITIONS))
        _require(self.norm in NORMS, "norm", self.norm, " or ".join(NORMS))
        _require(self.cache in CACHES, "cache", self.cache, " or ".join(CACHES))
        _require(self.mix in MIXES, "mix", self.mix, " or ".join(MIXES))
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

    def recurs(self, layer: int) -> bool:
        """Whether `layer` has a recurrent state in place of attention."""
        return self.mix == "recurrent" and layer == 0

    def source(self, layer: int) -> int:
        """The layer whose keys and values `layer` attends to."""
        shares = self.mix == "shared_kv" and 0 < layer == self.layers - 1
        return layer - 1 if shares else layer

    def crosses(self, layer: int) -> bool:
        """Whether `layer` attends to the side input."""
        return self.mix == "cross" and 0 < layer == self.layers - 1

    def stores(self, layer: int) -> bool:
        """Whether `layer` stores its own keys and values in the cache."""
        own = self.source(layer) == layer and not self.crosses(layer)
        return own and not self.recurs(layer)

    def at(self, layer: int) -> DecoderConfig:
        """Returns this configuration with the `window` of `layer`."""
        return _alternating(self)[layer % 2] if self.mix == "alternating" else self

    @property
    def windows(self) -> tuple[int | None, ...]:
        """The number of latest positions that each layer must keep; None for all."""
        return tuple(
            self.at(layer).window if self.stores(layer) else None for layer in range(self.layers)
        )

    def with_settings(self, **settings: Any) -> DecoderConfig:
        """Returns a changed configuration. Raises UsageError for an unknown field."""
        names = [field.name for field in dataclasses.fields(self)]
        for name in settings:
            if name not in names:
                raise UsageError(f"zoo has no setting {name!r}: choose from {', '.join(names)}")
        return dataclasses.replace(self, **settings)


@lru_cache(maxsize=256)
def _alternating(config: DecoderConfig) -> tuple[DecoderConfig, DecoderConfig]:
    """Returns the configuration of the layers with a window, and of those without."""
    window = config.window or ALTERNATING_WINDOW
    return dataclasses.replace(config, window=window), dataclasses.replace(config, window=None)


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 1


def _require(holds: bool, name: str, value: Any, wanted: str) -> None:
    if not holds:
        raise UsageError(f"zoo setting {name} should be {wanted}, got {value!r}")
