"""Names the sites inside a decoder where the two paths can be compared, in a fixed order."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from torch import Tensor

BEFORE = ("position",)
IN_LAYER = ("norm", "kv", "cache", "attention", "residual", "mlp_norm", "mlp", "mlp_residual")
AFTER = ("final_norm", "logits")
KINDS = (*BEFORE, *IN_LAYER, *AFTER)

_PROSE = {
    "position": "position ids",
    "norm": "normalised hidden state",
    "kv": "new query, key and value",
    "cache": "cache",
    "attention": "attention",
    "residual": "residual",
    "mlp_norm": "normalised hidden state before the MLP",
    "mlp": "MLP",
    "mlp_residual": "residual after the MLP",
    "final_norm": "final normalisation",
    "logits": "logits",
}


@dataclass(frozen=True, slots=True)
class Site:
    """A place to compare. `kind` is one of KINDS; `layer` counts from 0, and is None outside
    layers."""

    kind: str
    layer: int | None = None

    def __post_init__(self) -> None:
        if self.kind not in KINDS or (self.layer is None) == (self.kind in IN_LAYER):
            raise ValueError(f"there is no site of kind {self.kind!r} at layer {self.layer}")

    def __str__(self) -> str:
        """Writes `layer.kind`, or the kind alone outside layers, as in JSON."""
        return self.kind if self.layer is None else f"{self.layer}.{self.kind}"

    @classmethod
    def parse(cls, text: str) -> Site:
        """Reads what `str` wrote."""
        layer, dot, kind = text.rpartition(".")
        return cls(kind, int(layer) if dot else None)

    @property
    def order(self) -> tuple[int, int, int]:
        """The key that sorts sites into the canonical order."""
        stage = 0 if self.kind in BEFORE else 1 if self.kind in IN_LAYER else 2
        return stage, self.layer or 0, KINDS.index(self.kind)

    @property
    def prose(self) -> str:
        """The name for a reader; layers count from 1."""
        words = _PROSE[self.kind]
        return words if self.layer is None else f"{words} of layer {self.layer + 1}"


class Note(Protocol):
    """Receives the states of a site: tensors [batch, time, features] or [batch, heads, time,
    head_dim], or indices [batch, time], or [time] if all rows share them."""

    def __call__(self, kind: str, layer: int | None, *states: Tensor) -> None: ...


def ignore_note(kind: str, layer: int | None, *states: Tensor) -> None:
    """Drops the states: the note of a run that nobody traces."""
