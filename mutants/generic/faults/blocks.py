"""Faults in the layers of a torch model, and in their attention, during a cached call."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from mutants.generic.equivalence_checks import in_bfloat16
from mutants.generic.module_hooks import ModuleCall, modules
from mutants.generic.module_roles import ModuleRoles, matrix_of

LACKS = "its torch model runs no list of modules item by item"
NO_MIXER = "no module of its torch model mixes positions"


def first(roles: ModuleRoles, model: nn.Module) -> Sequence[str]:  # noqa: ARG001
    """The first layer."""
    return roles.blocks[:1]


def last(roles: ModuleRoles, model: nn.Module) -> Sequence[str]:  # noqa: ARG001
    """The last layer."""
    return roles.blocks[-1:]


def every(roles: ModuleRoles, model: nn.Module) -> Sequence[str]:  # noqa: ARG001
    """All layers."""
    return roles.blocks


def mixers(roles: ModuleRoles, model: nn.Module) -> Sequence[str]:  # noqa: ARG001
    """The modules that mix positions, in all layers."""
    return roles.mixers


def last_mixer(roles: ModuleRoles, model: nn.Module) -> Sequence[str]:  # noqa: ARG001
    """The modules that mix positions in the last layer."""
    return roles.mixers[-1:]


def later(roles: ModuleRoles, model: nn.Module) -> Sequence[str]:
    """The projections of later layers that the first layer has too."""
    return list(_in_the_first(roles, model))


def _in_the_first(roles: ModuleRoles, model: nn.Module) -> dict[str, str]:
    """Maps each projection of a later layer to that of the first layer with the same name and
    shape."""
    found: dict[str, str] = {}
    for block in roles.blocks[1:]:
        for path in roles.projections:
            twin = roles.blocks[0] + path.removeprefix(block)
            if path.startswith(f"{block}.") and twin in roles.projections:
                shapes = [matrix_of(model, name).shape for name in (path, twin)]
                found |= {path: twin} if shapes[0] == shapes[1] else {}
    return found


@modules(first, LACKS)
def first_skipped(call: ModuleCall) -> Tensor:
    """The first layer is skipped: it returns its input."""
    return call.x


@modules(last, LACKS)
def last_skipped(call: ModuleCall) -> Tensor:
    """The last layer is skipped: it returns its input."""
    return call.x


@modules(last, LACKS)
def last_without_residual(call: ModuleCall) -> Tensor:
    """The last layer subtracts its input from its output, as if it had no residual connection."""
    return call.y - call.x


@modules(last, LACKS)
def last_counted_twice(call: ModuleCall) -> Tensor:
    """The last layer adds its contribution to the residual stream twice."""
    return call.y + (call.y - call.x)


@modules(later, "no later layer has projections of the shapes of the first")
def later_ones_have_the_weights_of_the_first(call: ModuleCall) -> Tensor:
    """The projections of every later layer use the matrices of the first layer."""
    return call.other(_in_the_first(call.roles, call.model)[call.path])


@modules(every, LACKS, equivalent_if=in_bfloat16)
def rounded_to_bfloat16(call: ModuleCall) -> Tensor:
    """The output of every layer is rounded to bfloat16, whatever the dtype of the model."""
    return call.y.bfloat16().to(call.y.dtype)


@modules(first, LACKS)
def first_of_the_call_before(call: ModuleCall) -> Tensor:
    """For the first token of a call, the first layer returns its output for the last token of the
    call before."""
    before = call.memory.get("before")
    call.memory["before"] = call.y[:, -1:].clone()
    if before is None or before.shape[0] != call.y.shape[0]:
        return call.y
    return torch.cat((before.to(call.y.dtype), call.y[:, 1:]), 1)


@modules(first, LACKS, advice="draw two rows or more")
def rows_of_the_first_crossed(call: ModuleCall) -> Tensor:
    """The first layer gives each row the output of the row before it."""
    return call.y.roll(1, 0)


@modules(mixers, NO_MIXER)
def attention_dropped(call: ModuleCall) -> Tensor:
    """The output of attention, or of other modules that mix positions, is zero."""
    return torch.zeros_like(call.y)


@modules(last_mixer, NO_MIXER)
def attention_of_the_last_too_large(call: ModuleCall) -> Tensor:
    """The attention output of the last layer is a hundredth too large."""
    return call.y * 1.01


@modules(mixers, NO_MIXER, advice="draw two rows or more")
def attention_of_the_first_row(call: ModuleCall) -> Tensor:
    """All rows get the attention output of the first row."""
    return call.y[:1].expand_as(call.y)
