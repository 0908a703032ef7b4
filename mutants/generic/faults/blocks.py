"""Layers of a torch model, and what they are made of, that do something else in a cached call."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from mutants.generic.equivalence_checks import in_bfloat16
from mutants.generic.module_hooks import At, modules
from mutants.generic.module_roles import Anatomy, matrix_of

LACKS = "no list of modules of its torch model is run item by item"
NO_MIXER = "no module of its torch model mixes positions"


def first(known: Anatomy, model: nn.Module) -> Sequence[str]:  # noqa: ARG001
    """The first layer."""
    return known.blocks[:1]


def last(known: Anatomy, model: nn.Module) -> Sequence[str]:  # noqa: ARG001
    """The last layer."""
    return known.blocks[-1:]


def every(known: Anatomy, model: nn.Module) -> Sequence[str]:  # noqa: ARG001
    """All layers."""
    return known.blocks


def mixers(known: Anatomy, model: nn.Module) -> Sequence[str]:  # noqa: ARG001
    """What mixes positions, in all layers."""
    return known.mixers


def last_mixer(known: Anatomy, model: nn.Module) -> Sequence[str]:  # noqa: ARG001
    """What mixes positions in the last layer."""
    return known.mixers[-1:]


def later(known: Anatomy, model: nn.Module) -> Sequence[str]:
    """The projections of layers after the first that the first has too."""
    return list(_in_the_first(known, model))


def _in_the_first(known: Anatomy, model: nn.Module) -> dict[str, str]:
    """For each projection of a later layer, that at the same place in the first one."""
    found: dict[str, str] = {}
    for block in known.blocks[1:]:
        for path in known.projections:
            twin = known.blocks[0] + path.removeprefix(block)
            if path.startswith(f"{block}.") and twin in known.projections:
                shapes = [matrix_of(model, name).shape for name in (path, twin)]
                found |= {path: twin} if shapes[0] == shapes[1] else {}
    return found


@modules(first, LACKS)
def first_skipped(at: At) -> Tensor:
    """The first layer gives what it is given."""
    return at.x


@modules(last, LACKS)
def last_skipped(at: At) -> Tensor:
    """The last layer gives what it is given."""
    return at.x


@modules(last, LACKS)
def last_without_residual(at: At) -> Tensor:
    """What the last layer is given is not added to what it gives."""
    return at.y - at.x


@modules(last, LACKS)
def last_counted_twice(at: At) -> Tensor:
    """What the last layer adds is added twice."""
    return at.y + (at.y - at.x)


@modules(later, "no later layer has projections of the shapes of the first")
def later_ones_have_the_weights_of_the_first(at: At) -> Tensor:
    """Every layer projects by the matrices of the first one."""
    return at.other(_in_the_first(at.anatomy, at.model)[at.path])


@modules(every, LACKS, blind=in_bfloat16)
def rounded_to_bfloat16(at: At) -> Tensor:
    """What passes from layer to layer is rounded to bfloat16, whatever the model computes in."""
    return at.y.bfloat16().to(at.y.dtype)


@modules(first, LACKS)
def first_of_the_call_before(at: At) -> Tensor:
    """The first layer gives for the first token of a call what it gave for the last one before."""
    before = at.memory.get("before")
    at.memory["before"] = at.y[:, -1:].clone()
    if before is None or before.shape[0] != at.y.shape[0]:
        return at.y
    return torch.cat((before.to(at.y.dtype), at.y[:, 1:]), 1)


@modules(first, LACKS, advice="draw two rows or more")
def rows_of_the_first_crossed(at: At) -> Tensor:
    """The first layer gives to each row what is the row's before it."""
    return at.y.roll(1, 0)


@modules(mixers, NO_MIXER)
def attention_dropped(at: At) -> Tensor:
    """What attention, or whatever else mixes positions, gives is nought."""
    return torch.zeros_like(at.y)


@modules(last_mixer, NO_MIXER)
def attention_of_the_last_too_large(at: At) -> Tensor:
    """What attention gives in the last layer is a hundredth too large."""
    return at.y * 1.01


@modules(mixers, NO_MIXER, advice="draw two rows or more")
def attention_of_the_first_row(at: At) -> Tensor:
    """Attention gives to all rows what is the first one's."""
    return at.y[:1].expand_as(at.y)
