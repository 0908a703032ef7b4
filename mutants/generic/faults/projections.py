"""Faults in the linear projections of a torch model during a cached call."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from mutants.generic.equivalence_checks import in_bfloat16, no_biases
from mutants.generic.module_hooks import ModuleCall, modules
from mutants.generic.module_roles import ModuleRoles, matrix_of

LACKS = "no module of its torch model is a linear projection"
PAIR = "no two projections of one module have matrices of the same shape"


def every(roles: ModuleRoles, model: nn.Module) -> Sequence[str]:  # noqa: ARG001
    """All projections."""
    return roles.projections


def first(roles: ModuleRoles, model: nn.Module) -> Sequence[str]:  # noqa: ARG001
    """The projection that runs first."""
    return roles.projections[:1]


def last(roles: ModuleRoles, model: nn.Module) -> Sequence[str]:  # noqa: ARG001
    """The projection that runs last."""
    return roles.projections[-1:]


def twins(roles: ModuleRoles, mixing: bool) -> dict[str, str]:
    """Maps each projection that has a twin to it, in the modules that mix positions or in the
    others."""
    found: dict[str, str] = {}
    for one, other in roles.twins:
        if (one.rpartition(".")[0] in roles.mixers) == mixing:
            found |= {one: other, other: one}
    return found


def of_mixers(roles: ModuleRoles, model: nn.Module) -> Sequence[str]:  # noqa: ARG001
    """Projections that have a twin, in the modules that mix positions."""
    return list(twins(roles, mixing=True))


def elsewhere(roles: ModuleRoles, model: nn.Module) -> Sequence[str]:  # noqa: ARG001
    """Projections that have a twin, in other modules."""
    return list(twins(roles, mixing=False))


def fused(roles: ModuleRoles, model: nn.Module) -> Sequence[str]:
    """Projections in the modules that mix positions whose output is three times as wide as their
    input."""
    return [
        path
        for path in roles.projections
        if path.rpartition(".")[0] in roles.mixers
        and max(matrix_of(model, path).shape) == 3 * min(matrix_of(model, path).shape)
    ]


def biased(roles: ModuleRoles, model: nn.Module) -> Sequence[str]:
    """Projections that have a bias."""
    return [
        path
        for path in roles.projections
        if isinstance(getattr(model.get_submodule(path), "bias", None), Tensor)
    ]


@modules(of_mixers, PAIR)
def swapped_where_positions_mix(call: ModuleCall) -> Tensor:
    """In attention, two projections of the same shape are swapped, such as those of keys and
    values."""
    return call.other(twins(call.roles, mixing=True)[call.path])


@modules(elsewhere, PAIR)
def swapped_in_the_feed_forward(call: ModuleCall) -> Tensor:
    """Outside attention, two projections of the same shape are swapped, such as gate and up."""
    return call.other(twins(call.roles, mixing=False)[call.path])


@modules(fused, "no projection fuses queries, keys and values")
def thirds_swapped(call: ModuleCall) -> Tensor:
    """The last two thirds of a fused query, key and value projection are swapped."""
    query, key, value = call.y.chunk(3, -1)
    return torch.cat((query, value, key), -1)


@modules(every, LACKS, equivalent_if=in_bfloat16)
def all_rounded_to_bfloat16(call: ModuleCall) -> Tensor:
    """The output of every projection is rounded to bfloat16, whatever the dtype of the model."""
    return call.y.bfloat16().to(call.y.dtype)


@modules(first, LACKS, equivalent_if=in_bfloat16)
def first_rounded_to_bfloat16(call: ModuleCall) -> Tensor:
    """The output of the first projection is rounded to bfloat16, whatever the dtype of the
    model."""
    return call.y.bfloat16().to(call.y.dtype)


@modules(first, LACKS)
def features_of_the_first_permuted(call: ModuleCall) -> Tensor:
    """The output features of the first projection are shifted by one."""
    return call.y.roll(1, -1)


@modules(last, LACKS)
def last_of_the_call_before(call: ModuleCall) -> Tensor:
    """The last projection runs on the last token of the call before, not on the first of its own
    call."""
    before = call.memory.get("before")
    call.memory["before"] = call.x[:, -1:].clone()
    if before is None or before.shape[0] != call.x.shape[0]:
        return call.y
    return call.again(torch.cat((before.to(call.x.dtype), call.x[:, 1:]), 1))


@modules(biased, "no projection has a bias", equivalent_if=no_biases)
def biases_ignored(call: ModuleCall) -> Tensor:
    """No projection adds its bias."""
    return call.y - call.again(torch.zeros_like(call.x))
