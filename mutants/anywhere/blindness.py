"""What of a subject's design hides a fault: measured on the clean subject, never guessed from a
fault that was not caught."""

from __future__ import annotations

import functools
from collections.abc import Callable
from itertools import chain
from typing import Any

import torch
from torch import Tensor, nn

from kvfuzz.case import Case
from kvfuzz.compare import compare
from kvfuzz.reference import reference
from kvfuzz.run import as_tensor, seeded
from kvfuzz.subject import offers_of
from mutants.anywhere.anatomy import anatomy, called, hidden, module_of
from mutants.anywhere.hooks import hooked
from mutants.anywhere.stored import layers_of

CHUNKS = (3, 2)


def _case(subject: Any, dtype: str) -> Case:
    """Two rows fed in two chunks, each with its positions."""
    tokens = tuple(
        tuple((1 + 5 * row + 3 * column) % subject.vocab_size for column in range(sum(CHUNKS)))
        for row in range(2)
    )
    return Case(tokens, CHUNKS, dtype=dtype, given=("positions",))


def _placed(subject: Any, case: Case, positions: Tensor) -> Tensor:
    """The logits of the cached path with each token at one of `positions` [time]."""
    cache, pieces = subject.new_cache(2), []
    tokens = as_tensor(subject, case.tokens)
    given = positions.to(tokens.device).expand(2, -1)
    with seeded(0), torch.no_grad():
        for chunk, places in zip(_chunks(tokens), _chunks(given), strict=True):
            logits, cache = subject.cached(chunk, cache, positions=places)
            pieces.append(logits.clone())
    return torch.cat(pieces, 1)


def _chunks(values: Tensor) -> tuple[Tensor, Tensor]:
    """`values` [rows, time] of the two calls."""
    return values[:, : CHUNKS[0]], values[:, CHUNKS[0] :]


def no_positions(subject: Any, dtype: str) -> str | None:
    """Whether the cached path gives the same bits wherever its tokens are put."""
    case = _case(subject, dtype)
    right = torch.arange(sum(CHUNKS))
    logits = _placed(subject, case, right)
    moved = (right.flip(0), torch.zeros_like(right), right + 1)
    if all(torch.equal(logits, _placed(subject, case, places)) for places in moved):
        return "the positions that it is given change no bit of the logits"
    return None


def relative_positions(subject: Any, dtype: str) -> str | None:
    """Whether the cached path gives the same, but for rounding, with all tokens further on."""
    case = _case(subject, dtype)
    right = torch.arange(sum(CHUNKS))
    expected = reference(subject, case)
    if expected.tolerance is None:
        return None
    logits = _placed(subject, case, right)
    for distance in (1, 2):
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
    cache = subject.new_cache(2)
    tokens = as_tensor(subject, ((1 % subject.vocab_size,),) * 2)
    with seeded(0), torch.no_grad():
        _, cache = subject.cached(tokens, cache)
        return list(layers_of(subject, cache))


def unchanging_caches(subject: Any, dtype: str) -> str | None:  # noqa: ARG001
    """Whether a call leaves the cache that it is given as it was, bit for bit: it can then be
    shared."""
    one, two = (as_tensor(subject, ((n % subject.vocab_size,) * 2,) * 2) for n in (1, 2))
    with seeded(0), torch.no_grad():
        _, cache = subject.cached(one, subject.new_cache(2))
        first = subject.cached(two, cache)[0].clone()
        subject.cached(one, cache)
        again = subject.cached(two, cache)[0].clone()
        fresh = subject.new_cache(2)
        begun = subject.cached(two, fresh)[0].clone()
        restarted = subject.cached(two, fresh)[0].clone()
    if torch.equal(first, again) and torch.equal(begun, restarted):
        return "a call changes nothing of the cache that it is given, so that it can be shared"
    return None


def unit_gains(subject: Any, dtype: str) -> str | None:  # noqa: ARG001
    """Whether the norms multiply by nothing but one."""
    known = anatomy(subject)
    if not known.norms:
        return None
    largest = 0.0

    def look(path: str, module: nn.Module, args: Any, kwargs: Any, output: Any) -> Any:
        nonlocal largest
        norm = next(norm for norm in known.norms if norm.path == path)
        x = hidden(args, kwargs)
        assert x is not None
        gain = gain_of(functools.partial(called, module, args, kwargs), x, norm.centred)
        largest = max(largest, float((gain - 1).abs().max()))
        return output

    model = module_of(subject)
    assert model is not None
    tokens = as_tensor(subject, ((1 % subject.vocab_size, 2 % subject.vocab_size),))
    with seeded(0), torch.no_grad(), hooked(model, [n.path for n in known.norms], look):
        subject.uncached(tokens)
    return "the weight of every norm is one" if largest < NEAR_ONE else None


LOUD, LOUD_IN_HALF = 1e5, 1e2
"""How large the entries are made by which a gain is measured: the epsilon counts for nothing."""
NEAR_ONE = 1e-4
"""How far from one a gain of one may be measured."""


def gain_of(again: Callable[[Tensor], Tensor], x: Tensor, centred: bool) -> Tensor:
    """What a norm multiplies by, like `x` [..., width]; `again` calls it. One where that cannot be
    told, since the entry is nought."""
    size = LOUD_IN_HALF if x.dtype in (torch.float16, torch.bfloat16) else LOUD
    loud = x / x.abs().amax(-1, keepdim=True).clamp_min(1e-30) * size
    plain = normalised(loud, centred)
    gain = (again(loud) - again(-loud)) / 2 / plain
    told = (plain.abs() > 1e-3) & (gain.abs() > 1e-6)
    return torch.where(told, gain, torch.ones_like(gain))


def normalised(x: Tensor, centred: bool) -> Tensor:
    """`x` by the root of the mean of its squares, its mean taken away first if `centred`."""
    x = x - x.mean(-1, keepdim=True) if centred else x
    return x / x.square().mean(-1, keepdim=True).sqrt().clamp_min(1e-30)


def no_biases(subject: Any, dtype: str) -> str | None:  # noqa: ARG001
    """Whether the biases of all projections are nought."""
    model = module_of(subject)
    if model is None:
        return None
    owners = [model.get_submodule(path) for path in anatomy(subject).projections]
    kept = [getattr(owner, "bias", None) for owner in owners]
    biases = [bias for bias in kept if isinstance(bias, Tensor)]
    hidden = biases and not any(bool(bias.any()) for bias in biases)
    return "the bias of every projection is nought" if hidden else None


def in_bfloat16(subject: Any, dtype: str) -> str | None:  # noqa: ARG001
    """Whether it runs in bfloat16 anyway."""
    return "it runs in bfloat16" if dtype == "bfloat16" else None


def orderless(subject: Any, dtype: str) -> str | None:
    """Whether what reads the cache gives the same, but for rounding, with its entries backwards;
    a mask tells them apart, and so does a crop."""
    if {"mask", "crop"} & offers_of(subject):
        return None
    case = Case(_case(subject, dtype).tokens, CHUNKS, dtype=dtype)
    expected = reference(subject, case)
    if expected.tolerance is None:
        return None
    first, second = _chunks(as_tensor(subject, case.tokens))
    found: list[Tensor] = []
    if not _layers(subject):
        return None
    for backwards in (False, True):
        with seeded(0), torch.no_grad():
            _, cache = subject.cached(first, subject.new_cache(2))
            for part in chain(*layers_of(subject, cache)) if backwards else ():
                part.copy_(part.flip(2))
            found.append(subject.cached(second, cache)[0].clone())
    bound = expected.tolerance.between(CHUNKS[0], sum(CHUNKS))
    if bool(compare(found[1], found[0], bound).diverges.any()):
        return None
    return "its entries may stand in any order, and no mask or crop tells them apart"
