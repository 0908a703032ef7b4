"""Which kinds of layer a tiny configuration keeps: one of each, in the order of their coming."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from kvfuzz.subjects.transformers.tf_sizes import LAYERS

_PERIOD = re.compile(r"(_period|_interval|_pattern|_every_n_layers|_group_size)$")
_PLACES = ("attn_layer_indices", "hybrid_layer_ids")
# What is beside a kind of layer that keeps no keys, in models that may have either.
_BESIDE = {"mamba": "attention", "linear_attention": "full_attention"}


def kinds_kept(known: Mapping[str, Any], layers_field: str, asked: int | None) -> dict[str, Any]:
    """The fields that tell the kinds of layers, cut so that each kind is there, and the number of
    layers that this takes; `asked` is how many the user wants, None for as many as it takes.
    `known` are all fields with their defaults."""
    deep = known.get(layers_field)
    lists = {name: value for name, value in known.items() if _tells_kinds(name, value, deep)}
    most = max([len(_distinct(value)) for value in lists.values()], default=0)
    layers = asked or max(LAYERS, most)
    kept: dict[str, Any] = {name: _cut(value, layers) for name, value in lists.items()}
    for name, value in known.items():
        runs = _runs(value, deep, layers)
        if runs is not None:
            kept[name] = runs
        elif isinstance(value, int) and not isinstance(value, bool):
            kept |= _period(name, value, known)
        elif name in _PLACES:
            kept[name] = [1]
        elif isinstance(value, list | tuple) and name not in lists and "layer" in name:
            kept |= _beside(name, value, layers)
    if "conv_L_cache" in known and "layer_types" not in kept:
        # Kinds that are not told unless they are given.
        kept["layer_types"] = _cut(("conv", "full_attention"), layers)
    if most > LAYERS and layers_field in known:
        kept[layers_field] = layers
    return kept


def _beside(name: str, value: Any, layers: int) -> dict[str, list[str]]:
    """A field by which all layers are of one kind that keeps no keys, with another kind beside it;
    nothing for any other field."""
    kinds = _distinct(value) if all(isinstance(kind, str) for kind in value) else []
    if len(kinds) != 1 or kinds[0] not in _BESIDE:
        return {}
    return {name: _cut((kinds[0], _BESIDE[kinds[0]]), layers)}


def _tells_kinds(name: str, value: Any, deep: Any) -> bool:
    """Whether a field tells the kind of each layer, or of each in a cycle of layers."""
    if not isinstance(value, list | tuple) or name.startswith("mtp"):
        return False
    if not all(isinstance(kind, str | int | float) for kind in value):
        return False
    named = all(isinstance(kind, str) for kind in value) and ("layer" in name or "block" in name)
    many = len(_distinct(value))
    return many > 1 and (named or (len(value) == deep and many < deep))


def _distinct(value: Any) -> list[Any]:
    return list(dict.fromkeys(value))


def _cut(value: Any, layers: int) -> list[Any]:
    """The first `layers` of `value`, if every kind is there; else one of each kind, in turns."""
    kinds, head = _distinct(value), list(value[:layers])
    if len(head) == layers and set(head) == set(kinds):
        return head
    return (kinds * layers)[:layers]


def _runs(value: Any, deep: Any, layers: int) -> list[Any] | None:
    """A field that tells the kind of each of `deep` layers in runs, `[[kinds, times], ...]`, cut
    to the first `layers`; None for any other field."""
    if not isinstance(value, list | tuple) or not value:
        return None
    expanded = []
    for run in value:
        match run:
            case [[*kinds], int(times)]:
                expanded += list(kinds) * times
            case _:
                return None
    if len(expanded) != deep:
        return None
    cycle = -(-layers // len(expanded))
    return [[[kind], 1] for kind in (expanded * cycle)[:layers]]


def _period(name: str, value: int, known: Mapping[str, Any]) -> dict[str, int]:
    """Every how many layers another kind comes, made every second, and which one of these is first;
    nothing for any other field."""
    if not _PERIOD.search(name) or value <= LAYERS:
        return {}
    first = name.removesuffix("_period") + "_offset"
    return {name: LAYERS} | ({first: LAYERS - 1} if first in known else {})
