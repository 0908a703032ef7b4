"""Linear projections of a torch model that give something else while a cached call runs."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from mutants.generic.equivalence_checks import in_bfloat16, no_biases
from mutants.generic.module_hooks import At, modules
from mutants.generic.module_roles import Anatomy, matrix_of

LACKS = "no module of its torch model is a linear projection"
PAIR = "no two projections beside each other have matrices of one shape"


def every(known: Anatomy, model: nn.Module) -> Sequence[str]:  # noqa: ARG001
    """All projections."""
    return known.projections


def first(known: Anatomy, model: nn.Module) -> Sequence[str]:  # noqa: ARG001
    """The projection that runs first."""
    return known.projections[:1]


def last(known: Anatomy, model: nn.Module) -> Sequence[str]:  # noqa: ARG001
    """The projection that runs last."""
    return known.projections[-1:]


def twins(known: Anatomy, mixing: bool) -> dict[str, str]:
    """The twin of each projection that has one: in the modules that mix positions, or in the
    others."""
    found: dict[str, str] = {}
    for one, other in known.twins:
        if (one.rpartition(".")[0] in known.mixers) == mixing:
            found |= {one: other, other: one}
    return found


def of_mixers(known: Anatomy, model: nn.Module) -> Sequence[str]:  # noqa: ARG001
    """Those with a twin where positions are mixed."""
    return list(twins(known, mixing=True))


def elsewhere(known: Anatomy, model: nn.Module) -> Sequence[str]:  # noqa: ARG001
    """Those with a twin elsewhere."""
    return list(twins(known, mixing=False))


def fused(known: Anatomy, model: nn.Module) -> Sequence[str]:
    """Those of mixers whose output is three times as wide as what they are given."""
    return [
        path
        for path in known.projections
        if path.rpartition(".")[0] in known.mixers
        and max(matrix_of(model, path).shape) == 3 * min(matrix_of(model, path).shape)
    ]


def biased(known: Anatomy, model: nn.Module) -> Sequence[str]:
    """Those with a bias."""
    return [
        path
        for path in known.projections
        if isinstance(getattr(model.get_submodule(path), "bias", None), Tensor)
    ]


@modules(of_mixers, PAIR)
def swapped_where_positions_mix(at: At) -> Tensor:
    """In attention, two projections of one shape are swapped: keys are made by the matrix of the
    values, and values by that of the keys."""
    return at.other(twins(at.anatomy, mixing=True)[at.path])


@modules(elsewhere, PAIR)
def swapped_in_the_feed_forward(at: At) -> Tensor:
    """Outside of attention, two projections of one shape are swapped, as gate and up."""
    return at.other(twins(at.anatomy, mixing=False)[at.path])


@modules(fused, "no projection gives queries, keys and values at once")
def thirds_swapped(at: At) -> Tensor:
    """Of a projection to queries, keys and values at once, the last two thirds are swapped."""
    query, key, value = at.y.chunk(3, -1)
    return torch.cat((query, value, key), -1)


@modules(every, LACKS, blind=in_bfloat16)
def all_rounded_to_bfloat16(at: At) -> Tensor:
    """What projections give is rounded to bfloat16, whatever the model computes in."""
    return at.y.bfloat16().to(at.y.dtype)


@modules(first, LACKS, blind=in_bfloat16)
def first_rounded_to_bfloat16(at: At) -> Tensor:
    """What the first projection gives is rounded to bfloat16, whatever the model computes in."""
    return at.y.bfloat16().to(at.y.dtype)


@modules(first, LACKS)
def features_of_the_first_permuted(at: At) -> Tensor:
    """The features that the first projection gives come one place further on."""
    return at.y.roll(1, -1)


@modules(last, LACKS)
def last_of_the_call_before(at: At) -> Tensor:
    """The last projection is given the last token of the call before in place of the first of its
    own."""
    before = at.memory.get("before")
    at.memory["before"] = at.x[:, -1:].clone()
    if before is None or before.shape[0] != at.x.shape[0]:
        return at.y
    return at.again(torch.cat((before.to(at.x.dtype), at.x[:, 1:]), 1))


@modules(biased, "no projection has a bias", blind=no_biases)
def biases_ignored(at: At) -> Tensor:
    """No projection adds its bias."""
    return at.y - at.again(torch.zeros_like(at.x))
