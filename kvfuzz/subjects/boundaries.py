"""Finds the boundary values of a subject: row lengths at which its code may change what it does.

A window, a block, a capacity: a fault at such a length shows only in rows that cross it. They are
read from the configuration and the attributes of the subject, and from the integer constants in its
own source. Nothing is run, and nothing raises: what cannot be read gives no boundary.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from types import FunctionType, MethodType
from typing import Any

from torch import nn

from kvfuzz.subjects.source_constants import constants_of, is_own, own_sources

SHORT = 20
"""Lengths up to here are in ordinary rows, so that only named ones are kept."""
LARGEST = 2**20
MOST = 24
"""As many boundaries are kept: those named like a length first, then the least."""
MOST_THINGS = 500
MOST_ITEMS = 64

_LENGTHS = """
window block chunk sink sinks length len context ctx position positions capacity page
pages step stride slots limit keep kept kernel period recent budget buffer size every grow
growth evict threshold cutoff steps most max maximum
"""
_SIZES = """
vocab hidden dim dims head heads layer layers embd embed width intermediate rank experts
expert features channels inner ffn mlp model state seed theta base version batch beams num
n nf nx split
"""
_NEVER = "id ids idx seed vocab theta version maxsize side"
_VAGUE = "size max most maximum"
_CONFIGS = ("config", "cfg", "args", "hparams", "settings", "options")


@dataclass(frozen=True)
class Boundary:
    """A row length `value` at which a subject may change: the `name` of the setting or constant, if
    it has one, and the `place` in the source, as `file.py:12`."""

    value: int
    name: str = ""
    place: str = ""

    @property
    def origin(self) -> str:
        """The name and the place."""
        return ", ".join(filter(None, (self.name, self.place)))


def find_boundaries(
    subject: Any, config: Mapping[str, Any], choices: Mapping[str, Iterable[Any]]
) -> tuple[Boundary, ...]:
    """Returns up to MOST boundaries of `subject`, which was built with `config`, in ascending
    order: one for each value. `choices` are the values that cases draw settings from."""
    found: list[Boundary] = []
    longest = getattr(subject, "max_length", None)
    drawn = [(name, value) for name, values in choices.items() for value in values]
    for name, value in (("max_length", longest), *config.items(), *drawn):
        found += _numbers(name, value)
    things = list(_things(subject))
    for thing in things:
        if _counts(thing):
            found += [one for name, value in _named(thing) for one in _numbers(name, value)]
    roots = [subject, getattr(subject, "subject", None), getattr(subject, "model", None)]
    for constant in constants_of(own_sources(things, roots)):
        found += _numbers(constant.name, constant.value, constant.place)
    kept: dict[int, Boundary] = {}
    for one in sorted(found, key=lambda one: (_rank(one.name), one.value)):  # stable
        kept.setdefault(one.value, one)
    return tuple(sorted([*kept.values()][:MOST], key=lambda one: one.value))


def _numbers(name: str, value: Any, place: str = "") -> list[Boundary]:
    """Returns the boundary that `value` is; none if it is no count, or `name` says that it is no
    length."""
    if isinstance(value, bool) or not isinstance(value, int) or not 1 < value <= LARGEST:
        return []
    rank = _rank(name)
    if rank is _NO_LENGTH or (rank and value <= SHORT):
        return []
    return [Boundary(value, name, place)]


_NO_LENGTH = 9


def _rank(name: str) -> int:
    """Returns 0 for a `name` that has a word for a length, 1 for another name, 2 for none, and
    _NO_LENGTH for one that names another size."""
    words = set(re.sub(r"([a-z])([A-Z])", r"\1_\2", name).lower().split("_"))
    lengths = words & {*_LENGTHS.split()}
    # A `hidden_size` and a `head_dim` are no lengths, but a `max_window_layers` may be.
    if words & {*_NEVER.split()} or (words & {*_SIZES.split()} and not lengths - {*_VAGUE.split()}):
        return _NO_LENGTH
    return 0 if lengths else 1 if name else 2


def _counts(thing: Any) -> bool:
    """Whether the integers that `thing` holds are of the subject's own making."""
    return isinstance(thing, _Config | FunctionType) or is_own(type(thing).__module__)


@dataclass(frozen=True)
class _Config:
    """A configuration of any class, held by a subject or its model under a name that says so."""

    value: Any


def _things(subject: Any) -> Iterator[Any]:
    """Yields what `subject` is made of: objects of own classes, modules, configurations and
    functions with closures; each once, at most MOST_THINGS."""
    seen: set[int] = set()
    waiting: list[Any] = [subject]
    while waiting and len(seen) < MOST_THINGS:
        thing = waiting.pop(0)
        inside = thing.value if isinstance(thing, _Config) else thing
        if id(inside) in seen:
            continue
        seen.add(id(inside))
        yield thing
        for name, value in _named(thing):
            waiting += _worth_a_look(name, value)


def _worth_a_look(name: str, value: Any) -> Iterator[Any]:
    if isinstance(value, list | tuple | set):
        for item in [*value][:MOST_ITEMS]:
            yield from _worth_a_look("", item)
    elif isinstance(value, MethodType):
        yield from (value.__func__, value.__self__)
    elif isinstance(value, partial):
        yield from _worth_a_look("", value.func)
    elif isinstance(value, int | float | str | type) or value is None:
        return
    elif any(word in name for word in _CONFIGS):
        yield _Config(value)
    elif isinstance(value, Mapping) and not isinstance(value, nn.Module):
        for key, item in [*value.items()][:MOST_ITEMS]:
            yield from _worth_a_look(str(key), item)
    elif isinstance(value, FunctionType):
        if is_own(value.__module__ or ""):
            yield value
    elif isinstance(value, nn.Module) or dataclasses.is_dataclass(value) or _is_made_here(value):
        yield value


def _is_made_here(value: Any) -> bool:
    # The adapters and wrappers of kvfuzz hold the model that is under test.
    module = type(value).__module__
    return is_own(module) or module.startswith("kvfuzz.") or module == "types"


def _named(thing: Any) -> Iterator[tuple[str, Any]]:
    """Yields the names and values that `thing` holds."""
    if isinstance(thing, _Config):
        thing = thing.value
    if isinstance(thing, Mapping) and not isinstance(thing, nn.Module):
        yield from ((key, value) for key, value in thing.items() if isinstance(key, str))
        return
    if isinstance(thing, FunctionType):
        for name, cell in zip(thing.__code__.co_freevars, thing.__closure__ or (), strict=True):
            try:
                yield name, cell.cell_contents
            except ValueError:
                continue  # the variable is not set yet
        return
    named: dict[str, Any] = {}
    for cls in reversed(type(thing).__mro__):
        if is_own(cls.__module__):
            named |= vars(cls)
    if dataclasses.is_dataclass(thing):
        named |= {
            field.name: getattr(thing, field.name, None) for field in dataclasses.fields(thing)
        }
    yield from (named | getattr(thing, "__dict__", {})).items()
