"""Makes generic mutants of the modules of a torch model, by hooks during a cached call alone."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
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
from mutants.generic.mutant import GenericMutant, generic_mutant
from mutants.generic.wrapper import Call

Pick = Callable[[ModuleRoles, nn.Module], Sequence[str]]
"""The paths of the modules of a model that a fault changes."""


@dataclass(frozen=True)
class ModuleCall:
    """A call of the module at `path` of `model`: its input `x` and output `y`, the `roles` of all
    modules, and `memory`, which lives as long as the cache. `again` calls the module by itself on
    another input."""

    path: str
    x: Tensor
    y: Tensor
    model: nn.Module
    roles: ModuleRoles
    memory: dict[str, Any]
    again: Callable[[Tensor], Tensor]

    @property
    def norm(self) -> Norm:
        """The module as a norm."""
        return next(norm for norm in self.roles.norms if norm.path == self.path)

    def other(self, path: str) -> Tensor:
        """Returns the output of the module at `path` for the same input."""
        found = self.model.get_submodule(path).forward(self.x)
        assert isinstance(found, Tensor)
        return found


def modules(
    pick: Pick, lacks: str, **declared: Any
) -> Callable[[Callable[[ModuleCall], Tensor]], GenericMutant]:
    """Makes a mutant of a function that takes a ModuleCall and returns an output in place of `y`.

    It runs for the modules that `pick` finds; `lacks` says what is missing where it finds none.
    """

    def decorated(fault: Callable[[ModuleCall], Tensor]) -> GenericMutant:
        def intercept(call: Call) -> Any:
            model, roles = module_of(call.subject), module_roles(call.subject)
            paths = pick(roles, model) if model is not None else ()
            if model is None or not paths:
                return call.go()

            def change(path: str, module: nn.Module, args: Any, kwargs: Any, output: Any) -> Any:
                x, y = hidden(args, kwargs), first_tensor(output)
                if x is None or y is None:
                    return output
                again = functools.partial(called, module, args, kwargs)
                changed = fault(ModuleCall(path, x, y, model, roles, call.record.memory, again))
                if declared.get("placebo") or not torch.equal(changed, y):
                    call.reached()
                return _with_first(output, changed.to(y.dtype).contiguous())

            with hooked(model, paths, change):
                return call.go()

        fields = {"lacks": lacks, "advice": DRAW, **declared}
        return generic_mutant(fault, ("cached",), intercept, **fields)

    return decorated


DRAW = "feed a filled cache: two calls or more"


def _with_first(output: Any, first: Tensor) -> Any:
    """Returns the output of a module with `first` as its only or first tensor."""
    return type(output)((first, *output[1:])) if isinstance(output, tuple | list) else first


@contextmanager
def hooked(model: nn.Module, paths: Sequence[str], change: Callable[..., Any]) -> Iterator[None]:
    """Inside, `change` takes each call of the modules at `paths` and returns their output."""
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
