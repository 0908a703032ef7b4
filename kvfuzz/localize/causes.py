"""Names the cause of a divergence, and what to look at first.

A wrong state often is the right state of something else: of another position, another row or
another layer; or it is the right one rounded, scaled or rotated. `lookalikes` tries each of these
on the numbers; one that fits names the cause. Where none fits, the facts and the site decide.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from kvfuzz.localize.lookalikes import WrongState, find_lookalike
from kvfuzz.subjects.trace import Site

CAUSES: Mapping[str, str] = {
    "position index": "the position index of the {token} token{seen}",
    "rope scaling": "the rotary frequencies that {layer} uses at the {token} token: the position "
    "is right and the rotation is not{seen}",
    "append slot": "what {layer} appends to its cache and reads back: the slot, and the number of "
    "entries, at the {token} token{seen}",
    "layer index": "the index of the layer that {layer} passes to its cache{seen}",
    "batch row": "the order of the rows in {layer}'s cache, at row {row}{seen}",
    "stale state": "what {operation} leaves in {layer}'s cache: it is not what it should hold, at "
    "the {token} token{seen}",
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
    "uninitialised memory": "the memory that is read at the {token} token before anything was "
    "written to it, from torch.empty or the like: it holds whatever was in memory{seen}",
    "evicted keys": "what {layer} drops from its cache or overwrites there while it is still "
    "attended to, at the {token} token{seen}",
    "not repeatable": "what is not the same in every run, at the {token} token{seen}",
    "unknown": "the line named, at the {token} token: nothing tells one cause from the others"
    "{seen}",
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
_OF_OPERATION = dict.fromkeys(("reorder", "select", "repeat"), "batch row")
# These change the length of the cache, from which a decoder may read the next token's position.
_SHORTENING = ("crop", "reset", "restore")


@dataclass(frozen=True)
class Facts:
    """What else is known about a divergence.

    `operation` is the kind of the last step before it that changed the cache and fed no tokens, if
    the same calls without that step are right (`proof` says so in words), or may be;
    `operated` says whether that step itself left the wrong state. `earlier` says whether the state
    belongs to tokens of earlier calls, `rotary` whether it is part of a rotary table, `recurrent`
    whether it is carried from call to call and is no key or value. `window` is that of the layer,
    in tokens, None for all. `uninitialised` says that the operation to blame computed with memory
    that nothing had been written to, `evicted` in words which key is gone, and `vague` that the
    site does not separate the cause from others. `factor` says in words by what the line named
    multiplies, None where it is not known and is another than that of the state; `unplaced` that no
    position numbers were seen to agree.
    """

    operation: str | None = None
    proof: str = ""
    operated: bool = False
    earlier: bool = False
    rotary: bool = False
    recurrent: bool = False
    window: int | None = None
    uninitialised: bool = False
    evicted: str = ""
    vague: bool = False
    factor: str | None = ""
    unplaced: bool = False


def find_cause(site: Site, position: int, state: WrongState, facts: Facts) -> tuple[str, str]:
    """Returns the cause, a key of CAUSES, and in words what shows it (empty where only the site
    does)."""
    if facts.uninitialised:
        return "uninitialised memory", "kvfuzz fills it with NaN"
    if facts.evicted:
        return "evicted keys", facts.evicted
    shown = find_lookalike(state)
    if facts.operation and facts.proof:
        return _OF_OPERATION.get(facts.operation, "stale state"), facts.proof
    if shown is not None:
        cause, seen = _cause_at(shown[0], site, facts), shown[1]
        if cause == "scale" and facts.factor is None:
            return cause, "the state is a multiple of what it should be"
        return cause, (facts.factor or seen) if cause == "scale" else seen
    if facts.operated or (facts.operation and facts.earlier):
        cause = _OF_OPERATION.get(facts.operation or "", "stale state")
        return cause, f"the last operation was {facts.operation}"
    if facts.recurrent and site.kind in ("kv", "cache"):
        return "recurrent state", ""
    if facts.rotary:
        return "rope scaling", ""
    if site.kind == "attention" and facts.window is not None and position >= facts.window:
        return "window", f"it is past the window of {facts.window}"
    return "unknown" if facts.vague else _OF_KIND[site.kind], ""


def _cause_at(cause: str, site: Site, facts: Facts) -> str:
    """Returns the cause that a lookalike's `cause` stands for at `site`."""
    if cause == "append slot" and site.kind not in ("kv", "cache"):
        return "position index" if facts.rotary else _OF_KIND[site.kind]
    if cause == "append slot" and facts.operation and site.kind == "cache":
        return "stale state"
    if cause == "rope scaling" and site.kind not in ("kv", "cache"):
        return _OF_KIND[site.kind]
    if cause == "rope scaling" and facts.unplaced:
        return "unknown"  # at another position its vectors have the same lengths as well
    if cause == "position index" and site.kind not in ("position", "kv", "cache"):
        return _OF_KIND[site.kind]  # the whole numbers are those of a mask
    if cause == "position index" and facts.operation in _SHORTENING:
        return "stale state"
    if cause == "scale" and site.kind in ("norm", "mlp_norm", "final_norm", "position"):
        return _OF_KIND[site.kind]
    return cause


def advice(
    cause: str, site: Site, row: int, position: int, seen: str = "", operation: str | None = None
) -> str:
    """Returns in a sentence what to look at first."""
    return CAUSES[cause].format(
        token=ordinal(position),
        row=row,
        layer="the model" if site.layer is None else f"layer {site.layer + 1}",
        where=_WHERE.get(site.kind, ""),
        operation=operation or "an earlier call",
        seen=f" ({seen})" if seen else "",
    )


def advice_for(site: Site, row: int, position: int) -> str:
    """Returns in a sentence what to look at first where only the site is known."""
    return advice(_OF_KIND[site.kind], site, row, position)


def ordinal(position: int) -> str:
    """Returns `first`, `second`, ... `tenth`, then `11th` for the token at `position` (from 0)."""
    if position < len(_ORDINALS):
        return _ORDINALS[position]
    number = position + 1
    endings = {1: "st", 2: "nd", 3: "rd"}
    ending = "th" if number % 100 in (11, 12, 13) else endings.get(number % 10, "th")
    return f"{number}{ending}"
