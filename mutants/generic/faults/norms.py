"""Faults in the norms of a torch model during a cached call."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor, nn

from mutants.generic.equivalence_checks import gain_of, idempotent, unit_gains
from mutants.generic.module_hooks import ModuleCall, modules
from mutants.generic.module_roles import ModuleRoles

LACKS = "no module of its torch model normalises"


def every(roles: ModuleRoles, model: nn.Module) -> Sequence[str]:  # noqa: ARG001
    """All norms."""
    return [norm.path for norm in roles.norms]


def first(roles: ModuleRoles, model: nn.Module) -> Sequence[str]:
    """The norm that runs first."""
    return every(roles, model)[:1]


def last(roles: ModuleRoles, model: nn.Module) -> Sequence[str]:
    """The norm that runs last."""
    return every(roles, model)[-1:]


@modules(first, LACKS)
def first_skipped(call: ModuleCall) -> Tensor:
    """The first norm is skipped: it returns its input."""
    return call.x


@modules(last, LACKS)
def last_skipped(call: ModuleCall) -> Tensor:
    """The last norm is skipped: it returns its input."""
    return call.x


@modules(every, LACKS, equivalent_if=unit_gains)
def weights_ignored(call: ModuleCall) -> Tensor:
    """No norm multiplies by its weight."""
    bias = (call.y + call.again(-call.x)) / 2
    return (call.y - bias) / gain_of(call.again, call.x, call.norm.centred) + bias


@modules(every, LACKS, advice="draw a call of two tokens or more")
def by_the_last_token_of_the_chunk(call: ModuleCall) -> Tensor:
    """Norms divide all tokens of a call by the spread (RMS or standard deviation) of the last
    one."""
    x = call.x - call.x.mean(-1, keepdim=True) if call.norm.centred else call.x
    spread = x.square().mean(-1, keepdim=True).sqrt()
    mirrored = call.again(-call.x)
    scaled = (call.y - mirrored) / 2 * spread / spread[:, -1:].clamp_min(1e-30)
    return scaled + (call.y + mirrored) / 2


@modules(last, LACKS, equivalent_if=idempotent)
def last_twice(call: ModuleCall) -> Tensor:
    """The last norm is applied twice."""
    return call.again(call.y)
