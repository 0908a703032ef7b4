"""Causes: from how a state differs to what to look at first.

A wrong state often is the right state of something else: of another position, another row, another
layer, or the right one rounded, scaled, rotated. Each of these is tried on the numbers themselves;
what fits names the cause. Where nothing does, the site decides.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor

from kvfuzz.sites import Site

CAUSES: Mapping[str, str] = {
    "position index": "the position index of the {token} token{seen}",
    "rope scaling": "the rotary frequencies that {layer} uses at the {token} token: the position "
    "is right and the rotation is not{seen}",
    "append slot": "what {layer} appends to its cache and reads back: the slot, and the number of "
    "entries, at the {token} token{seen}",
    "layer index": "the index of the layer that {layer} passes to its cache{seen}",
    "batch row": "the order of the rows in {layer}'s cache, at row {row}{seen}",
    "stale state": "what {operation} leaves in {layer}'s cache: it holds what it should no longer "
    "hold, at the {token} token{seen}",
    "head grouping": "how the heads of {layer} share keys and values, at the {token} token{seen}",
    "dtype": "where {layer} rounds to a lower precision than the model's, at the {token} "
    "token{seen}",
    "scale": "the factor that {layer} multiplies by at the {token} token{seen}",
    "norm": "the normalisation {where} in {layer}, at the {token} token{seen}",
    "projection": "the query, key and value projections of {layer} (and their rotation), at the "
    "{token} token{seen}",
    "mask alignment": "the mask that {layer} applies and the order of its keys, at the {token} "
    "token{seen}",
    "window": "the window of {layer}: which keys are still seen at the {token} token{seen}",
    "recurrent state": "the state that {layer} carries from call to call, at the {token} "
    "token{seen}",
    "residual": "the residual connection {where} in {layer}, at the {token} token{seen}",
    "mlp": "the MLP of {layer}, at the {token} token{seen}",
    "readout": "the readout, at the {token} token{seen}",
}
"""The causes, each with what to look at first."""

_OF_KIND = {
    "position": "position index",
    "norm": "norm",
    "kv": "projection",
    "cache": "append slot",
    "attention": "mask alignment",
    "residual": "residual",
    "mlp_norm": "norm",
    "mlp": "mlp",
    "mlp_residual": "residual",
    "final_norm": "norm",
    "logits": "readout",
}
_WHERE = {
    "norm": "before attention",
    "mlp_norm": "before the MLP",
    "final_norm": "before the readout",
    "residual": "around attention",
    "mlp_residual": "around the MLP",
}
_ORDINALS = (
    "first",
    "second",
    "third",
    "fourth",
    "fifth",
    "sixth",
    "seventh",
    "eighth",
    "ninth",
    "tenth",
)
# After these the length of the cache is another, and where the next token stands is read from it.
_SHORTENING = ("crop", "reset", "restore")
# The coarsest first: what it can hold, the others can hold too.
_COARSER = (torch.bfloat16, torch.float16, torch.float32)
_ALIKE = 1e-9


@dataclass(frozen=True)
class State:
    """The state that differs first, float64: what was `found` [rows, places, features] at the
    `positions` of each place, and what is `right` [rows, positions, features] at all positions of
    the same rows; `others` are the right ones of other layers, by the layer's number. `found` and
    `right` are None where they have no axis of positions."""

    found: Tensor | None = None
    right: Tensor | None = None
    positions: tuple[int, ...] = ()
    others: Mapping[int, Tensor] = field(default_factory=dict)


@dataclass(frozen=True)
class Facts:
    """What else is known: `operation` is the kind of the last step that fed nothing before the
    divergence, `operated` whether that step itself left the wrong state, `earlier` whether the
    state is about tokens of earlier calls, `indices` whether it is made of integers, `rotary`
    whether it is part of a rotary table, `masks` whether of a mask, `recurrent` whether of a state
    that is no key or value; `windows` are those of the layers."""

    operation: str | None = None
    operated: bool = False
    earlier: bool = False
    indices: bool = False
    rotary: bool = False
    masks: bool = False
    recurrent: bool = False
    window: int | None = None


def cause_of(site: Site, position: int, state: State, facts: Facts) -> tuple[str, str]:
    """The cause, a key of CAUSES, and in words what shows it (empty where the site alone does)."""
    shown = resemblance(state)
    if shown is not None:
        return _fitting(shown[0], site, facts), shown[1]
    if facts.operated or (facts.operation and facts.earlier):
        moved = facts.operation in ("reorder", "select", "repeat")
        return (
            "batch row" if moved else "stale state"
        ), f"the last operation was {facts.operation}"
    if facts.recurrent and site.kind in ("kv", "cache"):
        return "recurrent state", ""
    if facts.rotary:
        return "rope scaling", ""
    if site.kind == "attention" and facts.window is not None and position >= facts.window:
        return "window", f"it is past the window of {facts.window}"
    return _OF_KIND[site.kind], ""


def _fitting(cause: str, site: Site, facts: Facts) -> str:
    """What a resemblance means at `site`."""
    if cause == "append slot" and site.kind not in ("kv", "cache"):
        return "position index" if facts.rotary else _OF_KIND[site.kind]
    if cause == "append slot" and facts.operation and site.kind == "cache":
        return "stale state"
    if cause == "rope scaling" and site.kind not in ("kv", "cache"):
        return _OF_KIND[site.kind]
    if cause == "position index" and site.kind not in ("position", "kv", "cache"):
        return _OF_KIND[site.kind]  # numbers in a mask
    if cause == "position index" and facts.operation in _SHORTENING:
        return "stale state"
    if cause == "scale" and site.kind in ("norm", "mlp_norm", "final_norm", "position"):
        return _OF_KIND[site.kind]
    return cause


def advice(
    cause: str, site: Site, row: int, position: int, seen: str = "", operation: str | None = None
) -> str:
    """What to look at first, in a sentence for a person."""
    return CAUSES[cause].format(
        token=ordinal(position),
        row=row,
        layer="the model" if site.layer is None else f"layer {site.layer + 1}",
        where=_WHERE.get(site.kind, ""),
        operation=operation or "an earlier call",
        seen=f" ({seen})" if seen else "",
    )


def advice_for(site: Site, row: int, position: int) -> str:
    """What to look at first where the site is all that is known."""
    return advice(_OF_KIND[site.kind], site, row, position)


def ordinal(position: int) -> str:
    """`first`, `second`, ... `tenth`, then `11th` for the token at `position` (from 0)."""
    if position < len(_ORDINALS):
        return _ORDINALS[position]
    number = position + 1
    endings = {1: "st", 2: "nd", 3: "rd"}
    ending = "th" if number % 100 in (11, 12, 13) else endings.get(number % 10, "th")
    return f"{number}{ending}"


@dataclass(frozen=True)
class _Wrong:
    """What is wrong: `found` and `expected` [rows, places, features], `wrong` [rows, places] which
    of them differ, `right` [rows, positions, features] all that is right, in float64; `row` and
    `place` are the first that differs."""

    found: Tensor
    right: Tensor
    expected: Tensor
    wrong: Tensor
    state: State

    @property
    def mine(self) -> Tensor:
        """The wrong ones [places, features]."""
        return self.found[self.wrong]

    @property
    def theirs(self) -> Tensor:
        """What these should be [places, features]."""
        return self.expected[self.wrong]

    @property
    def row(self) -> int:
        return int(self.wrong.any(1).nonzero()[0])

    @property
    def place(self) -> int:
        return int(self.wrong[self.row].nonzero()[0])


def resemblance(state: State) -> tuple[str, str] | None:
    """What the wrong state is instead of the right one: the cause, and what shows it. None if it is
    like nothing that is tried."""
    if state.found is None or state.right is None or not state.positions:
        return None
    found, right = state.found.double(), state.right.double()
    if found.shape[0] != right.shape[0] or found.shape[2] != right.shape[2]:
        return None
    expected = right[:, list(state.positions)]
    scale = expected.abs().amax() if expected.numel() else 0.0
    wrong = (found - expected).abs().amax(-1) > _ALIKE * scale
    if not bool(wrong.any()):
        return None
    case = _Wrong(found, right, expected, wrong, state)
    return next(filter(None, (trial(case) for trial in _TRIALS)), None)


def _alike(one: Tensor, other: Tensor) -> bool:
    """Whether two states are the same, and are no trivial ones."""
    scale = float(other.abs().max()) if other.numel() else 0.0
    return scale > 0 and float((one - other).abs().max()) <= _ALIKE * scale


def _index(case: _Wrong) -> tuple[str, str] | None:
    """Numbers of places, in place of states."""
    if case.found.shape[2] != 1 or not torch.equal(case.right, case.right.round()):
        return None
    mine, theirs = (float(v[case.row, case.place]) for v in (case.found, case.expected))
    return "position index", f"it is {mine:g}, and should be {theirs:g}"


def _rounded(case: _Wrong) -> tuple[str, str] | None:
    mine, theirs = case.mine, case.theirs
    for dtype in _COARSER:
        exact = torch.equal(mine.to(dtype).double(), mine)
        near = (mine - theirs).abs() <= 2 * torch.finfo(dtype).eps * theirs.abs().amax()
        if exact and bool(near.all()) and not torch.equal(theirs.to(dtype).double(), theirs):
            return "dtype", f"the values are those of {str(dtype).removeprefix('torch.')}"
    return None


def _other_layer(case: _Wrong) -> tuple[str, str] | None:
    for number, other in case.state.others.items():
        if other.shape == case.right.shape:
            theirs = other.double()[:, list(case.state.positions)][case.wrong]
            if _alike(case.mine, theirs) and not _alike(case.theirs, theirs):
                return "layer index", f"it is what layer {number + 1} should have"
    return None


def _other_row(case: _Wrong) -> tuple[str, str] | None:
    row = case.row
    wrong = case.wrong[row]
    for other in range(case.found.shape[0]):
        if other != row and _alike(case.found[row][wrong], case.expected[other][wrong]):
            return "batch row", f"row {row} has what row {other} should have"
    return None


def _other_position(case: _Wrong) -> tuple[str, str] | None:
    position = case.state.positions[case.place]
    for other in range(case.right.shape[1]):
        if other != position and _alike(
            case.found[case.row, case.place], case.right[case.row, other]
        ):
            return "append slot", f"position {position} has what position {other} should have"
    return None


def _nothing(case: _Wrong) -> tuple[str, str] | None:
    return None if bool(case.mine.any()) else ("append slot", "nothing was written there")


def _scaled(case: _Wrong) -> tuple[str, str] | None:
    mine, theirs = case.mine.flatten(), case.theirs.flatten()
    square = float(theirs @ theirs)
    if mine.numel() < 3 or square == 0:
        return None
    factor = float(mine @ theirs) / square
    if factor and _alike(mine, factor * theirs):
        return "scale", f"it is {factor:.4g} times what it should be"
    return None


def _heads(case: _Wrong) -> tuple[str, str] | None:
    """The same values in another order of equal blocks."""
    width = case.mine.shape[-1]
    for heads in (2, 4, 8, 16, 32):
        if width % heads or width == heads:
            continue
        mine, theirs = (v.reshape(v.shape[0], heads, -1) for v in (case.mine, case.theirs))
        if all(
            any(_alike(mine[:, head], theirs[:, other]) for other in range(heads))
            for head in range(heads)
        ):
            return "head grouping", "its heads hold what other heads should hold"
    return None


def _rotated(case: _Wrong) -> tuple[str, str] | None:
    """The same lengths, in other directions."""
    mine, theirs = (values.square().sum(-1) for values in (case.mine, case.theirs))
    if case.mine.shape[-1] > 3 and _alike(mine, theirs):
        return "rope scaling", "it is as long as it should be, and rotated otherwise"
    return None


_TRIALS = (
    _index,
    _rounded,
    _other_layer,
    _other_row,
    _other_position,
    _nothing,
    _scaled,
    _heads,
    _rotated,
)


def table(found: Tensor, axis: int, rows: int | None) -> Tensor:
    """A state as [rows, places, features], with `axis` the places and `rows` the axis of rows."""
    values: Tensor = found.movedim(axis, 0)
    if rows is None or rows == axis:
        return values.reshape(1, values.shape[0], -1)
    rows = rows + 1 if rows < axis else rows
    return (
        values.movedim(rows, 0).flatten(2)
        if values.dim() > 2
        else values.movedim(rows, 0)[..., None]
    )
