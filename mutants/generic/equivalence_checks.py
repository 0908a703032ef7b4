"""Measures what in the design of a subject hides a fault, on the clean subject.

Each check returns the reason, or None if the fault can show. None concludes anything from a fault
that was not caught.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import replace
from itertools import chain, zip_longest
from typing import Any

import torch
from torch import Tensor, nn

from kvfuzz.case.case import Case
from kvfuzz.oracle.compare import compare
from kvfuzz.oracle.reference import find_reference
from kvfuzz.search.strategies import LONGEST
from kvfuzz.subjects.call_limits import most_rows
from kvfuzz.subjects.protocol import offers_of
from kvfuzz.subjects.run import as_tensor, seeded
from kvfuzz.subjects.sides import sides_of
from kvfuzz.subjects.tensors import walk
from mutants.generic.cache_contents import layers_of
from mutants.generic.module_hooks import hooked
from mutants.generic.module_roles import called, hidden, module_of, module_roles

FEWEST, SECOND, FURTHEST = 5, 2, 2
"""The smallest number of tokens to measure, those in the second call, and the largest distance by
which positions are moved."""


def _case(subject: Any, dtype: str) -> Case:
    """Returns a case of two rows in two chunks with positions given. Rows are as long as the
    longest that is drawn, since some effects begin late, such as those of a full window."""
    room = LONGEST if subject.max_length is None else subject.max_length - FURTHEST
    length = max(FEWEST, min(LONGEST, room))
    tokens = tuple(
        tuple((1 + 5 * row + 3 * column) % subject.vocab_size for column in range(length))
        for row in range(most_rows(subject, 2))
    )
    return Case(tokens, (length - SECOND, SECOND), dtype=dtype, given=("positions",))


def _placed(subject: Any, case: Case, positions: Tensor) -> Tensor:
    """Returns the logits of the cached path with the tokens at `positions` [time]."""
    cache, pieces = subject.new_cache(most_rows(subject, 2)), []
    tokens = as_tensor(subject, case.tokens)
    given, sides = positions.to(tokens.device).expand(len(tokens), -1), _sides(subject, tokens)
    with seeded(0), torch.no_grad():
        for chunk, places in zip(_chunks(case, tokens), _chunks(case, given), strict=True):
            logits, cache = subject.cached(chunk, cache, positions=places, **sides)
            pieces.append(logits.clone())
    return torch.cat(pieces, 1)


def _sides(subject: Any, tokens: Tensor) -> dict[str, Tensor]:
    """Returns the side inputs of rows that begin with `tokens` [rows, time]."""
    return sides_of(subject, tokens.tolist(), tokens.device)


def _chunks(case: Case, values: Tensor) -> tuple[Tensor, Tensor]:
    """Splits `values` [rows, time] into those of the two calls of `case`."""
    return values[:, : case.length - SECOND], values[:, case.length - SECOND :]


def no_positions(subject: Any, dtype: str) -> str | None:
    """Whether the cached path gives the same bits for any positions."""
    case = _case(subject, dtype)
    right = torch.arange(case.length)
    logits = _placed(subject, case, right)
    moved = (right.flip(0), torch.zeros_like(right), right + 1)
    if all(torch.equal(logits, _placed(subject, case, places)) for places in moved):
        return "the positions that it is given change no bit of the logits"
    return None


def relative_positions(subject: Any, dtype: str) -> str | None:
    """Whether the cached path gives the same logits, up to rounding, with all positions moved."""
    case = _case(subject, dtype)
    right = torch.arange(case.length)
    expected = find_reference(subject, case)
    if expected.tolerance is None:
        return None
    logits = _placed(subject, case, right)
    for distance in range(1, FURTHEST + 1):
        found = compare(_placed(subject, case, right + distance), logits, expected.tolerance)
        if bool(found.diverges.any()):
            return None
    return "positions count relative to each other: all moved by as many, the logits are the same"


def one_layer(subject: Any, dtype: str) -> str | None:  # noqa: ARG001
    """Whether its cache shows keys and values of one layer alone."""
    count = len(_layers(subject))
    return "its cache holds keys and values of one layer" if count == 1 else None


def one_head(subject: Any, dtype: str) -> str | None:  # noqa: ARG001
    """Whether all layers hold keys and values of one head."""
    heads = {keys.shape[1] for keys, _ in _layers(subject)}
    return "its keys and values have one head" if heads == {1} else None


def _layers(subject: Any) -> list[tuple[Tensor, Tensor]]:
    cache = subject.new_cache(most_rows(subject, 2))
    tokens = as_tensor(subject, ((1 % subject.vocab_size,),) * most_rows(subject, 2))
    with seeded(0), torch.no_grad():
        _, cache = subject.cached(tokens, cache, **_sides(subject, tokens))
        return list(layers_of(subject, cache))


def unchanging_caches(subject: Any, dtype: str) -> str | None:  # noqa: ARG001
    """Whether a call leaves its cache unchanged, bit for bit, so that it can be shared."""
    rows = most_rows(subject, 2)
    one, two = (as_tensor(subject, ((n % subject.vocab_size,) * 2,) * rows) for n in (1, 2))
    with seeded(0), torch.no_grad():
        sides = _sides(subject, one)
        _, filled = subject.cached(one, subject.new_cache(rows), **sides)
        for cache in (filled, subject.new_cache(rows)):
            before = [tensor.clone() for tensor in _tensors(cache)]
            first = subject.cached(two, cache, **sides)[0].clone()
            # A counter shows in the next logits; a tensor may change without being used.
            after, again = _tensors(cache), subject.cached(two, cache, **sides)[0]
            pairs = [(first, again), *zip_longest(before, after)]
            if any(a is None or b is None or not torch.equal(a, b) for a, b in pairs):
                return None
    return "a call changes nothing of the cache that it is given, so that it can be shared"


def _tensors(cache: Any) -> list[Tensor]:
    """Returns all tensors in `cache`, except those of modules."""
    return [thing for thing in walk(cache, modules=False) if isinstance(thing, Tensor)]


def unit_gains(subject: Any, dtype: str) -> str | None:  # noqa: ARG001
    """Whether every norm multiplies by one."""
    roles = module_roles(subject)
    if not roles.norms:
        return None
    largest = 0.0

    def look(path: str, module: nn.Module, args: Any, kwargs: Any, output: Any) -> Any:
        nonlocal largest
        norm = next(norm for norm in roles.norms if norm.path == path)
        x = hidden(args, kwargs)
        assert x is not None
        gain = gain_of(functools.partial(called, module, args, kwargs), x, norm.centred)
        largest = max(largest, float((gain - 1).abs().max()))
        return output

    model = module_of(subject)
    assert model is not None
    tokens = as_tensor(subject, ((1 % subject.vocab_size, 2 % subject.vocab_size),))
    with seeded(0), torch.no_grad(), hooked(model, [n.path for n in roles.norms], look):
        subject.uncached(tokens, **_sides(subject, tokens))
    return "the weight of every norm is one" if largest < NEAR_ONE else None


def idempotent(subject: Any, dtype: str) -> str | None:
    """Whether the last norm leaves its own output unchanged, up to rounding."""
    case = replace(_case(subject, dtype), given=())
    expected, norms = find_reference(subject, case), module_roles(subject).norms[-1:]
    if expected.tolerance is None or not norms:
        return None

    def twice(path: str, module: nn.Module, args: Any, kwargs: Any, output: Any) -> Any:  # noqa: ARG001
        return called(module, args, kwargs, output)

    model = module_of(subject)
    assert model is not None
    tokens = as_tensor(subject, case.tokens)
    with seeded(0), torch.no_grad():
        sides = _sides(subject, tokens)
        once = subject.uncached(tokens, **sides).clone()
        with hooked(model, [norm.path for norm in norms], twice):
            found = compare(subject.uncached(tokens, **sides), once, expected.tolerance)
    return None if bool(found.diverges.any()) else "the last norm does nothing to its own output"


LOUD, LOUD_IN_HALF = 1e5, 1e2
"""Size of the entries that measure a gain: so large that the epsilon of a norm does not count."""
NEAR_ONE = 1e-4
"""How far from one a measured gain of one may be."""


def gain_of(again: Callable[[Tensor], Tensor], x: Tensor, centred: bool) -> Tensor:
    """Returns the factor of a norm, shaped like `x` [..., width]; `again` calls the norm. It is one
    where an entry is zero, since the factor cannot be measured there."""
    size = LOUD_IN_HALF if x.dtype in (torch.float16, torch.bfloat16) else LOUD
    loud = x / x.abs().amax(-1, keepdim=True).clamp_min(1e-30) * size
    plain = normalised(loud, centred)
    gain = (again(loud) - again(-loud)) / 2 / plain
    measured = (plain.abs() > 1e-3) & (gain.abs() > 1e-6)
    return torch.where(measured, gain, torch.ones_like(gain))


def normalised(x: Tensor, centred: bool) -> Tensor:
    """Divides `x` by the root of the mean of its squares, after subtracting its mean if
    `centred`."""
    x = x - x.mean(-1, keepdim=True) if centred else x
    return x / x.square().mean(-1, keepdim=True).sqrt().clamp_min(1e-30)


def no_biases(subject: Any, dtype: str) -> str | None:  # noqa: ARG001
    """Whether all biases of projections are zero."""
    model = module_of(subject)
    if model is None:
        return None
    owners = [model.get_submodule(path) for path in module_roles(subject).projections]
    kept = [getattr(owner, "bias", None) for owner in owners]
    biases = [bias for bias in kept if isinstance(bias, Tensor)]
    hidden = biases and not any(bool(bias.any()) for bias in biases)
    return "the bias of every projection is zero" if hidden else None


def in_bfloat16(subject: Any, dtype: str) -> str | None:  # noqa: ARG001
    """Whether it runs in bfloat16 anyway."""
    return "it runs in bfloat16" if dtype == "bfloat16" else None


def orderless(subject: Any, dtype: str) -> str | None:
    """Whether the next logits are the same, up to rounding, with the entries of the cache reversed.
    A mask or a crop distinguishes entries by their order."""
    if {"mask", "crop"} & offers_of(subject):
        return None
    case = replace(_case(subject, dtype), given=())
    expected = find_reference(subject, case)
    if expected.tolerance is None:
        return None
    first, second = _chunks(case, as_tensor(subject, case.tokens))
    found: list[Tensor] = []
    if not _layers(subject):
        return None
    for backwards in (False, True):
        with seeded(0), torch.no_grad():
            sides = _sides(subject, first)
            _, cache = subject.cached(first, subject.new_cache(most_rows(subject, 2)), **sides)
            for part in chain(*layers_of(subject, cache)) if backwards else ():
                part.copy_(part.flip(2))
            found.append(subject.cached(second, cache, **sides)[0].clone())
    bound = expected.tolerance.between(case.length - SECOND, case.length)
    if bool(compare(found[1], found[0], bound).diverges.any()):
        return None
    return "its entries may stand in any order, and no mask or crop tells them apart"
