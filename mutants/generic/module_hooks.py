"""Faults in the modules of a torch model, by hooks that are there during a cached call alone."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from mutants.generic.module_roles import (
    ModuleRoles,
    Norm,
    called,
    first_tensor,
    hidden,
    module_of,
    module_roles,
)
from mutants.generic.mutant import GenericMutant, made
from mutants.generic.wrapper import Call

Pick = Callable[[ModuleRoles, nn.Module], Sequence[str]]
"""The paths of the modules of a model that a fault changes."""


@dataclass(frozen=True)
class ModuleCall:
    """A module at work: what it was given (`x`), what it gave (`y`), the `model` that it is at
    `path` of, its `roles`, and `memory`, which lives as long as the cache. `again` calls the
    module, or another of the model, by itself."""

    path: str
    x: Tensor
    y: Tensor
    model: nn.Module
    roles: ModuleRoles
    memory: dict[str, Any]
    again: Callable[[Tensor], Tensor]

    @property
    def norm(self) -> Norm:
        """What is known of it as a norm."""
        return next(norm for norm in self.roles.norms if norm.path == self.path)

    def other(self, path: str) -> Tensor:
        """What the module at `path` gives for the same input."""
        found = self.model.get_submodule(path).forward(self.x)
        assert isinstance(found, Tensor)
        return found


def modules(
    pick: Pick, lacks: str, **told: Any
) -> Callable[[Callable[[ModuleCall], Tensor]], GenericMutant]:
    """The decorated function takes a ModuleCall, and gives what the module gives in place of `y`.
    It is called for the modules that `pick` finds; `lacks` says what there is not where it finds
    none."""

    def decorated(fault: Callable[[ModuleCall], Tensor]) -> GenericMutant:
        def intercept(call: Call) -> Any:
            roles = module_roles(call.subject)
            model = module_of(call.subject)
            paths = pick(roles, model) if model is not None else ()
            if model is None or not paths:
                return call.go()
            with hooked(model, paths, functools.partial(_changed, fault, call, roles, model, told)):
                return call.go()

        return made(fault, ("cached",), intercept, **{"lacks": lacks, "advice": DRAW, **told})

    return decorated


DRAW = "feed a filled cache: two calls or more"


def _changed(
    fault: Callable[[ModuleCall], Tensor],
    call: Call,
    roles: ModuleRoles,
    model: nn.Module,
    told: Mapping[str, Any],
    path: str,
    module: nn.Module,
    args: Any,
    kwargs: Any,
    output: Any,
) -> Any:
    """The `output` of a module with its first tensor as `fault` has it."""
    x, y = hidden(args, kwargs), first_tensor(output)
    if x is None or y is None:
        return output
    again = functools.partial(called, module, args, kwargs)
    changed = fault(ModuleCall(path, x, y, model, roles, call.record.memory, again))
    if told.get("placebo") or not torch.equal(changed, y):
        call.reached()
    changed = changed.to(y.dtype).contiguous()
    return type(output)((changed, *output[1:])) if isinstance(output, tuple | list) else changed


@contextmanager
def hooked(model: nn.Module, paths: Sequence[str], change: Callable[..., Any]) -> Iterator[None]:
    """Inside, what the modules at `paths` give is what `change` makes of it; their hooks are gone
    afterwards, also by an exception."""
    handles = []
    try:
        for path in paths:
            hook = functools.partial(change, path)
            found = model.get_submodule(path)
            handles.append(found.register_forward_hook(hook, with_kwargs=True))
        yield
    finally:
        for handle in handles:
            handle.remove()
