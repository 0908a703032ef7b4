"""Finds out by trying what a transformers model can do: the caches it takes, and what they offer.

A thing is left out if the release has no such thing or refuses it, never because its numbers are
wrong. A kind of cache with which a model raises, and that it does not refuse, stays: the cases
show it.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import torch

from kvfuzz.subjects.transformers import caches
from kvfuzz.subjects.transformers.build import text_config
from kvfuzz.subjects.transformers.cache_kinds import (
    CLASSES,
    PREALLOCATED,
    Unavailable,
    build_cache,
    build_own,
    find_own_class,
    kinds_of,
)
from kvfuzz.subjects.transformers.caches import CacheState
from kvfuzz.subjects.transformers.call import Forward, NoCache, blank_encoding, forward_of
from kvfuzz.subjects.transformers.padding import Padding, find_padding
from kvfuzz.subjects.transformers.source import Source, describe

ROOM = 64
"""The slots of a preallocated cache, for a model that takes any number of them."""

_ROWS, _SHORT, _LONG = 2, 2, 8


class Unbuildable(Exception):
    """A cache of this kind cannot be made from what kvfuzz knows of the model."""


@dataclass(frozen=True)
class Abilities:
    """The abilities of a model: how its `forward` is called, the `kinds` of cache that it takes,
    what any of them `offers`, how it treats padding, and the class of its `own` cache where it has
    to be given one. `problems` are the errors, by kind, with which it refuses others."""

    forward: Forward
    kinds: tuple[str, ...]
    offers: frozenset[str]
    padding: Padding
    own: Any
    problems: tuple[str, ...]

    def new_cache(self, source: Source, model: Any, kind: str, rows: int, room: int) -> CacheState:
        """Returns an empty cache of `kind`. Raises whatever the library raises."""
        if kind == "own" and self.own is not None:
            return CacheState(build_own(self.own, model, rows), rows)
        own = build_cache(source, kind, model, rows, room)
        return CacheState(own, rows, room=room if kind in PREALLOCATED else None)


def probe(source: Source, model: Any, room: int, kind: str | None) -> Abilities:
    """Finds out what `model` can do, with every kind of cache or with the `kind` asked for."""
    forward = forward_of(model)
    bare = Abilities(forward, (), frozenset(), Padding(False), None, ())
    names = kinds_of(source) if kind is None else (kind,)
    own, tried, errors = None, {}, dict[str, Exception]()
    for name in names:
        try:
            tried[name] = _try_kind(source, model, bare, name, room)
        except NoCache:
            own = find_own_class(model)
            try:
                tried[name] = _try_kind(source, model, replace(bare, own=own), name, room)
            except Exception as error:
                errors[name] = error
        except Exception as error:
            errors[name] = error
    refused = {name: error for name, error in errors.items() if is_refusal(error)}
    short, _ = next(iter(tried.values()), (None, None))
    forward = replace(forward, recurrent=short is not None and _has_no_keys(short))
    window = _narrowest_window(model, short)
    return Abilities(
        forward,
        tuple(name for name in names if name not in refused),
        frozenset(word for pair in tried.values() for word in _offers(model, *pair)),
        find_padding(model, forward, blank_encoding(model, 2), window),
        own,
        tuple(f"{name}: {describe(error)}" for name, error in refused.items()),
    )


def is_refusal(error: Exception) -> bool:
    """Whether `error` says that a kind of cache is not for this model or release, and not that the
    model fails with it."""
    if isinstance(error, NotImplementedError | Unavailable | Unbuildable | NoCache):
        return True
    return isinstance(error, ValueError) and any(word in str(error) for word in _REFUSING)


_REFUSING = ("not support", "unsupported", "only support", "not compatible", "incompatible")
"""The words by which the library refuses."""


def merge(one: Abilities, other: Abilities) -> Abilities:
    """Returns what a model can do if a case may draw the settings of `one` or of `other`."""
    kinds = {*one.kinds, *other.kinds}
    windows = [able.padding.window for able in (one, other) if able.padding.window is not None]
    return replace(
        one,
        kinds=tuple(kind for kind in CLASSES if kind in kinds),
        offers=one.offers | other.offers,
        problems=tuple(
            problem
            for problem in dict.fromkeys((*one.problems, *other.problems))
            if problem.partition(":")[0] not in kinds
        ),
        padding=replace(one.padding, window=min(windows, default=None)),
    )


def _try_kind(
    source: Source, model: Any, able: Abilities, kind: str, room: int
) -> tuple[CacheState, CacheState]:
    """Returns a cache of `kind` after a short prompt, and one after a long prompt and a token more.
    Raises whatever is raised on the way."""
    found = []
    for sizes in ((_SHORT,), (_LONG, 1)):
        try:
            state = able.new_cache(source, model, kind, _ROWS, room)
        except Unavailable:
            raise
        except Exception as error:
            raise Unbuildable(describe(error)) from error
        state = replace(state, encoded=blank_encoding(model, _ROWS))
        for size in sizes:
            tokens = torch.ones(_ROWS, size, dtype=torch.int64, device=model.device)
            give_slots = needs_slots(kind, able.own)
            _, state = able.forward.cached(model, tokens, state, give_slots=give_slots)
        found.append(state)
    return found[0], found[1]


def needs_slots(kind: str, own: Any) -> bool:
    """Whether a model is given the slots that its tokens take: where `generate` always gives them,
    because the cache alone may not know."""
    return kind in PREALLOCATED or (kind == "own" and own is not None)


def _offers(model: Any, short: CacheState, long: CacheState) -> Iterator[str]:
    """Yields the optional methods that this kind of cache has, tried on one that holds little."""
    yield "copy"
    rows = torch.arange(_ROWS, device=model.device)
    trials: dict[str, Callable[[CacheState], object]] = {
        "crop": lambda state: caches.crop(state, 1),
        "reorder": lambda state: caches.reorder(model, state, rows),
        "reset": caches.reset,
        "save": caches.save,
    }
    for word, trial in trials.items():
        try:
            trial(copy.deepcopy(short))
        except NotImplementedError:
            continue
        except Exception as error:
            if "not support" in str(error):
                continue  # the library's own way of refusing
        yield word
    if any(pair is not None for pair in caches.view(short)):
        yield "view"
    if caches.unused(long) and _knows_its_length(short):
        yield "unused"


def _knows_its_length(state: CacheState) -> bool:
    """Whether a cache knows its length without looking for zeros in its unused slots."""
    cache = caches.self_attention_of(state.own)
    before = cache.get_seq_length()
    if before is None:
        return False
    before = int(before)
    for tensor in caches.unused(state):
        tensor.fill_(1)
    return int(cache.get_seq_length()) == before


def _has_no_keys(state: CacheState) -> bool:
    """Whether a cache that the library made holds states alone, and no keys."""
    pairs = list(caches.key_value_pairs(state.own))
    return not isinstance(state.own, tuple | list) and not any(pairs)


def layer_count(config: Any) -> int:
    """Returns the number of layers of `config`; 0 where the parts of a model have their own."""
    return getattr(config, "num_hidden_layers", None) or 0


def _narrowest_window(model: Any, state: CacheState | None) -> int | None:
    """Returns the narrowest window of the layers of `model`, None if all see everything."""
    config = text_config(model.config)
    found = caches.windows(state.own if state else None, config, layer_count(config))
    narrow = [window + 1 for window in found if window is not None]
    if "local" in (getattr(config, "attention_layers", None) or ()):
        narrow.append(config.window_size)
    return min(narrow, default=None)
