"""Norms of a torch model that do not do their work while a cached call runs."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor, nn

from mutants.generic.equivalence_checks import gain_of, idempotent, unit_gains
from mutants.generic.module_hooks import At, modules
from mutants.generic.module_roles import Anatomy

LACKS = "no module of its torch model normalises"


def every(known: Anatomy, model: nn.Module) -> Sequence[str]:  # noqa: ARG001
    """All norms."""
    return [norm.path for norm in known.norms]


def first(known: Anatomy, model: nn.Module) -> Sequence[str]:
    """The norm that runs first."""
    return every(known, model)[:1]


def last(known: Anatomy, model: nn.Module) -> Sequence[str]:
    """The norm that runs last."""
    return every(known, model)[-1:]


@modules(first, LACKS)
def first_skipped(at: At) -> Tensor:
    """The first norm gives what it is given."""
    return at.x


@modules(last, LACKS)
def last_skipped(at: At) -> Tensor:
    """The last norm gives what it is given."""
    return at.x


@modules(every, LACKS, blind=unit_gains)
def weights_ignored(at: At) -> Tensor:
    """No norm multiplies by its weight."""
    bias = (at.y + at.again(-at.x)) / 2
    return (at.y - bias) / gain_of(at.again, at.x, at.norm.centred) + bias


@modules(every, LACKS, advice="draw a call of two tokens or more")
def by_the_last_token_of_the_chunk(at: At) -> Tensor:
    """All tokens of a call are divided by the spread of its last one."""
    x = at.x - at.x.mean(-1, keepdim=True) if at.norm.centred else at.x
    spread = x.square().mean(-1, keepdim=True).sqrt()
    mirrored = at.again(-at.x)
    scaled = (at.y - mirrored) / 2 * spread / spread[:, -1:].clamp_min(1e-30)
    return scaled + (at.y + mirrored) / 2


@modules(last, LACKS, blind=idempotent)
def last_twice(at: At) -> Tensor:
    """The last norm is applied to its own output."""
    return at.again(at.y)
