"""What a transformers model can do, found by trying: which caches it takes, and what these offer.

Nothing is left out because its numbers are wrong: only what raises, or what there is not.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import torch

from kvfuzz.subjects.transformers import tf_operations as operations
from kvfuzz.subjects.transformers.build import text_config
from kvfuzz.subjects.transformers.caches import (
    CLASSES,
    PREALLOCATED,
    built_own,
    made,
    names_of,
    own_class,
)
from kvfuzz.subjects.transformers.call import Call, NoCache, call_of
from kvfuzz.subjects.transformers.padding import Padding, padding_of
from kvfuzz.subjects.transformers.source import Source, told
from kvfuzz.subjects.transformers.tf_encoder import blank
from kvfuzz.subjects.transformers.tf_held import Held, inner, pairs

ROOM = 64
"""The slots of a preallocated cache of a model that takes any number of them."""

_ROWS, _SHORT, _LONG = 2, 2, 8


@dataclass(frozen=True)
class Abilities:
    """How a model is called, the `kinds` of cache that it takes, what any of them `offers`, what
    padding means to it, and the class of its own cache where it has to be given one."""

    call: Call
    kinds: tuple[str, ...]
    offers: frozenset[str]
    padding: Padding
    own: Any
    problems: tuple[str, ...]

    def new(self, source: Source, model: Any, kind: str, rows: int, room: int) -> Held:
        """An empty cache of `kind`. Raises whatever the library raises."""
        if kind == "own" and self.own is not None:
            return Held(built_own(self.own, model, rows), rows)
        own = made(source, kind, model, rows, room)
        return Held(own, rows, room=room if kind in PREALLOCATED else None)


def abilities(source: Source, model: Any, room: int, kind: str | None) -> Abilities:
    """What `model` can do, of all kinds of cache or of the one that was asked for."""
    call = call_of(model)
    bare = Abilities(call, (), frozenset(), Padding(False), None, ())
    own, held, problems = None, {}, []
    for name in names_of(source) if kind is None else (kind,):
        try:
            held[name] = _tried(source, model, bare, name, room)
        except NoCache:
            own = own_class(model)
            try:
                held[name] = _tried(source, model, replace(bare, own=own), name, room)
            except Exception as error:
                problems.append(f"{name}: {told(error)}")
        except Exception as error:
            problems.append(f"{name}: {told(error)}")
    short, _ = next(iter(held.values()), (None, None))
    call = replace(call, recurrent=short is not None and _has_no_keys(short))
    return Abilities(
        call,
        tuple(held),
        frozenset(word for pair in held.values() for word in _offers(model, *pair)),
        padding_of(model, call, blank(model, 2), _narrowest(model, short)),
        own,
        tuple(problems),
    )


def merged(one: Abilities, other: Abilities) -> Abilities:
    """What a model can do if either of two of its settings is drawn."""
    kinds = {*one.kinds, *other.kinds}
    windows = [able.padding.window for able in (one, other) if able.padding.window is not None]
    return replace(
        one,
        kinds=tuple(kind for kind in CLASSES if kind in kinds),
        offers=one.offers | other.offers,
        padding=replace(one.padding, window=min(windows, default=None)),
    )


def _tried(source: Source, model: Any, able: Abilities, kind: str, room: int) -> tuple[Held, Held]:
    """Caches of `kind` after a short prompt, and after a long one and a token more. Raises whatever
    is raised on the way."""
    found = []
    for sizes in ((_SHORT,), (_LONG, 1)):
        held = replace(able.new(source, model, kind, _ROWS, room), encoded=blank(model, _ROWS))
        for size in sizes:
            tokens = torch.ones(_ROWS, size, dtype=torch.int64, device=model.device)
            _, held = able.call.cached(model, tokens, held, place=places(kind, able.own))
        found.append(held)
    return found[0], found[1]


def places(kind: str, own: Any) -> bool:
    """Whether a model is told which slots its tokens take: where `generate` always does, because
    the cache alone may not know."""
    return kind in PREALLOCATED or (kind == "own" and own is not None)


def _offers(model: Any, short: Held, long: Held) -> Iterator[str]:
    """The optional methods that this kind of cache has, going by one that holds little."""
    yield "copy"
    rows = torch.arange(_ROWS, device=model.device)
    trials: dict[str, Callable[[Held], object]] = {
        "crop": lambda held: operations.crop(held, 1),
        "reorder": lambda held: operations.reorder(model, held, rows),
        "reset": operations.reset,
        "save": operations.save,
    }
    for word, trial in trials.items():
        try:
            trial(copy.deepcopy(short))
        except NotImplementedError:
            continue
        except Exception as error:
            if "not support" in str(error):
                continue  # that is the library's way of refusing
        yield word
    if any(pair is not None for pair in operations.view(short)):
        yield "view"
    if operations.unused(long) and _counts_apart(short):
        yield "unused"


def _counts_apart(held: Held) -> bool:
    """Whether a cache knows its length otherwise than by what its unused slots hold."""
    cache = inner(held.own)
    before = cache.get_seq_length()
    if before is None:
        return False
    before = int(before)
    for tensor in operations.unused(held):
        tensor.fill_(1)
    return int(cache.get_seq_length()) == before


def _has_no_keys(held: Held) -> bool:
    """Whether a cache that the library made holds states alone, and no keys."""
    stored = list(pairs(held.own))
    return not isinstance(held.own, tuple | list) and not any(stored)


def _narrowest(model: Any, held: Held | None) -> int | None:
    """The narrowest window of the layers of `model`, None if all see everything."""
    config = text_config(model.config)
    layers = config.num_hidden_layers
    found = operations.windows(held.own if held else None, config, layers)
    narrow = [window + 1 for window in found if window is not None]
    if "local" in (getattr(config, "attention_layers", None) or ()):
        narrow.append(config.window_size)
    return min(narrow, default=None)
