"""Finds the norms, projections, mixers and blocks of a model by what they do, not by their names.

The uncached path runs once. Each module that ran is then called again by itself, on inputs that
show whether it normalises, projects, or mixes positions.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

from kvfuzz.subjects.call_limits import most_rows
from kvfuzz.subjects.float64 import Float64Subject
from kvfuzz.subjects.protocol import device_of
from kvfuzz.subjects.sides import sides_of
from kvfuzz.subjects.tensors import walk

SMALL, LARGE = 8.0, 16.0
"""Two scales of input at which a norm gives the same output: far above its epsilon, and where no
activation function is flat yet for small entries."""
SHARE = 1e-3
"""Two outputs are the same if they differ by less than this share of the largest entry."""
ROUNDED = 1e-6
"""The same share, where only rounding may move the outputs."""


@dataclass(frozen=True)
class Norm:
    """A module that divides by the spread of its input; a `centred` one subtracts the mean
    first."""

    path: str
    centred: bool


@dataclass(frozen=True)
class ModuleRoles:
    """The modules of a model by kind, each by its path, in the order in which they run.

    `norms` divide by the spread of their input; `projections` are linear in the last axis, and
    `twins` are the last two of one module that take the same input and have matrices of one shape;
    `mixers` are the innermost modules whose output at a position depends on the input at earlier
    ones; `blocks` the items of a list that is run item by item, each with an output of its input's
    shape.
    """

    norms: tuple[Norm, ...] = ()
    projections: tuple[str, ...] = ()
    twins: tuple[tuple[str, str], ...] = ()
    mixers: tuple[str, ...] = ()
    blocks: tuple[str, ...] = ()


_KNOWN: WeakKeyDictionary[nn.Module, ModuleRoles] = WeakKeyDictionary()


def module_of(subject: Any) -> nn.Module | None:
    """Returns the torch module that `subject` computes with: its `model`, itself, or the only
    module that it holds; None if there is none."""
    own = subject.subject if isinstance(subject, Float64Subject) else subject
    for module in (getattr(own, "model", None), own):
        if isinstance(module, nn.Module):
            return module
    held = [thing for thing in walk(own, modules=False) if isinstance(thing, nn.Module)]
    return held[0] if len(held) == 1 else None


def module_roles(subject: Any) -> ModuleRoles:
    """Returns the modules of `subject` (`module_of`) by kind; none for a subject without
    modules."""
    model = module_of(subject)
    if model is None:
        return ModuleRoles()
    if model not in _KNOWN:
        _KNOWN[model] = _measure(subject, model)
    return _KNOWN[model]


@dataclass
class _Seen:
    """The first call of a module, and what the module is."""

    order: int
    taken: Tensor
    same_shape: bool
    norm: Norm | None = None
    projects: bool = False
    mixes: bool = False


def _measure(subject: Any, model: nn.Module) -> ModuleRoles:
    seen: dict[str, _Seen] = {}
    busy = False

    def look(path: str, module: nn.Module, args: Any, kwargs: Any, output: Any) -> None:
        nonlocal busy
        taken = hidden(args, kwargs)
        given = first_tensor(output)
        if busy or path in seen or taken is None or given is None:
            return
        busy = True
        try:
            seen[path] = _inspect(path, module, args, kwargs, taken, given, len(seen))
        finally:
            busy = False

    length = min(5, subject.max_length or 5)
    rows = most_rows(subject, 2)
    tokens = torch.arange(rows * length).view(rows, length) * 3 % subject.vocab_size
    tokens = tokens.to(device_of(subject))
    with torch.no_grad(), watching(model, look):
        subject.uncached(tokens, **sides_of(subject, tokens.tolist(), tokens.device))
    return _roles(model, seen)


def _inspect(
    path: str, module: nn.Module, args: Any, kwargs: Any, taken: Tensor, given: Tensor, order: int
) -> _Seen:
    found = _Seen(order, taken, given.shape == taken.shape)
    leaf = next(module.children(), None) is None
    again = functools.partial(called, module, args, kwargs)
    if leaf and found.same_shape:
        found.norm = _norm(path, again, taken)
    if leaf and found.norm is None:
        found.projects = _projects(module, again, taken)
    if not leaf and taken.dim() == 3 and taken.shape[1] > 1:
        found.mixes = _mixes(again, taken, given)
    return found


def _norm(path: str, again: Callable[[Tensor], Tensor], x: Tensor) -> Norm | None:
    """Returns the module as a norm if it gives the same output for an input of another scale, and
    another output for another input; else None."""
    unit = x / x.abs().max().clamp_min(1e-30)
    one, other = again(SMALL * unit), again(LARGE * unit)
    if not alike(one, other) or alike(one, one.flip(1)) or alike(other, again(-LARGE * unit)):
        return None
    return Norm(path, centred=alike(again(LARGE * (unit + 1)), other))


def _projects(module: nn.Module, again: Callable[[Tensor], Tensor], x: Tensor) -> bool:
    """Whether a module is linear in its last axis, with a matrix as its weight."""
    weight = getattr(module, "weight", None)
    if not isinstance(weight, Tensor) or weight.dim() != 2 or x.shape[-1] not in weight.shape:
        return False
    zero, other = again(torch.zeros_like(x)), x.roll(1, -1)
    return alike(again(x + other) - zero, again(x) + again(other) - 2 * zero)


def _mixes(again: Callable[[Tensor], Tensor], x: Tensor, y: Tensor) -> bool:
    """Whether the output at the last position depends on the input at the first."""
    changed = x.clone()
    changed[:, 0] = x[:, 0].roll(1, -1) + x.abs().max()
    moved = again(changed)
    return moved.shape == y.shape and not alike(moved[:, -1], y[:, -1], ROUNDED)


def _roles(model: nn.Module, seen: dict[str, _Seen]) -> ModuleRoles:
    mixing = [path for path, found in seen.items() if found.mixes]
    innermost = [p for p in mixing if not any(other.startswith(f"{p}.") for other in mixing)]
    return ModuleRoles(
        norms=tuple(found.norm for found in seen.values() if found.norm is not None),
        projections=tuple(path for path, found in seen.items() if found.projects),
        twins=tuple(_twins(model, seen)),
        mixers=tuple(path for path in innermost if path),
        blocks=_blocks(model, seen),
    )


def _twins(model: nn.Module, seen: dict[str, _Seen]) -> Iterator[tuple[str, str]]:
    """Yields the last two projections of each module that take the same input and have matrices of
    one shape."""
    groups: dict[str, list[str]] = {}
    for path, found in seen.items():
        if found.projects:
            groups.setdefault(path.rpartition(".")[0], []).append(path)
    for paths in groups.values():
        for one, other in reversed(list(pairwise(paths))):
            shapes = [matrix_of(model, path).shape for path in (one, other)]
            if shapes[0] == shapes[1] and torch.equal(seen[one].taken, seen[other].taken):
                yield one, other
                break


def matrix_of(model: nn.Module, path: str) -> Tensor:
    """Returns the matrix of the projection at `path`."""
    weight = model.get_submodule(path).weight
    assert isinstance(weight, Tensor)
    return weight


def _blocks(model: nn.Module, seen: dict[str, _Seen]) -> tuple[str, ...]:
    """Returns the items of the largest list of modules that all run, in the order of the list."""
    best: tuple[int, tuple[str, ...]] = (0, ())
    for path, module in model.named_modules():
        if not isinstance(module, nn.ModuleList | nn.Sequential):
            continue
        paths = tuple(f"{path}.{name}" if path else name for name, _ in module.named_children())
        known = [seen.get(item) for item in paths]
        if not known or any(one is None or not one.same_shape for one in known):
            continue
        if [one.order for one in known if one] == sorted(one.order for one in known if one):
            size = sum(parameter.numel() for parameter in module.parameters())
            best = max(best, (size, paths))
    return best[1]


def hidden(args: Any, kwargs: Any) -> Tensor | None:
    """Returns the first floating-point argument [batch, time, ...] of a module; None without
    one."""
    for value in (*args, *kwargs.values()):
        if isinstance(value, Tensor) and value.is_floating_point() and value.dim() >= 2:
            return value
    return None


def first_tensor(output: Any) -> Tensor | None:
    """Returns the output, or the first of a tuple, if it is a floating-point tensor."""
    first = output[0] if isinstance(output, tuple | list) and output else output
    return first if isinstance(first, Tensor) and first.is_floating_point() else None


def called(module: nn.Module, args: Any, kwargs: Any, x: Tensor) -> Tensor:
    """Returns the output of `module` for `x` in place of the tensor that `hidden` finds, without
    running its hooks."""
    taken = hidden(args, kwargs)
    args = tuple(x if value is taken else value for value in args)
    kwargs = {name: x if value is taken else value for name, value in kwargs.items()}
    found = first_tensor(module.forward(*args, **kwargs))
    assert found is not None
    return found


def alike(one: Tensor, other: Tensor, share: float = SHARE) -> bool:
    """Whether two tensors differ by no more than a `share` of their largest entry."""
    largest = torch.maximum(one.abs(), other.abs()).max()
    return bool((one - other).abs().max() <= share * largest)


@contextmanager
def watching(model: nn.Module, look: Callable[..., None]) -> Iterator[None]:
    """Inside, `look` gets each call of each module: path, module, arguments, keywords, output."""
    handles = []
    try:
        for path, module in model.named_modules():

            def hook(
                module: nn.Module, args: Any, kwargs: Any, output: Any, path: str = path
            ) -> None:
                look(path, module, args, kwargs, output)

            handles.append(module.register_forward_hook(hook, with_kwargs=True))
        yield
    finally:
        for handle in handles:
            handle.remove()
