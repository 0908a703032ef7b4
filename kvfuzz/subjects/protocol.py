"""The boundary: what a decoder under test must offer, and how one is named, found and built.

A *subject* is one decoder. A *factory* builds subjects: one per model seed, dtype and drawn
configuration, so that weights and settings vary from case to case.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor

from kvfuzz.case.case import GIVEN, Case
from kvfuzz.errors import InvalidCase, InvalidSubject, KvfuzzError, one_line
from kvfuzz.subjects.dtypes import ROUNDOFF, dtype_name

METHODS = {"uncached": ("tokens",), "new_cache": ("batch",), "cached": ("tokens", "cache")}
OFFERED = {
    "crop": ("cache", "count"),
    "reorder": ("cache", "rows"),
    "copy": ("cache",),
    "save": ("cache",),
    "load": ("state",),
    "reset": ("cache",),
    "view": ("cache",),
    "unused": ("cache",),
    "generate": ("tokens", "length", "beams", "cached"),
}
"""The optional methods of a subject, and what each is called with."""


@runtime_checkable
class Subject(Protocol):
    """A decoder under test. Tokens are int64 [batch, time]; logits are [batch, time, vocab].

    Optional attributes that kvfuzz uses when they are there:
    `model`, the torch module behind both paths; `device`, where tokens are put; `width`, the
    size of the residual stream (where noise cannot be measured, narrow decoders are allowed more);
    `trace(record)`, a context manager inside which both paths report their states (see
    `kvfuzz.locate`); `cache_dtype`, the dtype of a cache that rounds on purpose, and `cache_bound`,
    how far that may move a logit, as a share of the position's largest;
    `perturbed(tokens, size, draws)`, for a subject that can run many sets of weights at once: the
    uncached float64 logits [draws, batch, time, vocab] of the weights as they are (for the draw
    None) and of random perturbations of them by a relative `size` (see `kvfuzz.oracle.noise`).

    What more can be done to a cache is offered by optional arguments of `cached` and by optional
    methods (`OFFERED`); docs/subjects.md says what each must do. A method that raises
    NotImplementedError, before it changes anything, refuses what this cache cannot do.
    """

    vocab_size: int
    max_length: int | None

    def uncached(self, tokens: Tensor) -> Tensor:
        """Logits [batch, time, vocab] for all of `tokens` [batch, time], without a cache."""

    def new_cache(self, batch: int) -> Any:
        """An empty cache for `batch` rows."""

    def cached(self, tokens: Tensor, cache: Any) -> tuple[Tensor, Any]:
        """Logits [batch, time, vocab] for `tokens` alone, and the cache to pass next time."""


@dataclass(frozen=True)
class Limits:
    """What a strategy may draw from: token ids below `vocab_size`, rows up to `max_length`, and
    what the subject `offers` beyond the protocol."""

    vocab_size: int
    max_length: int | None
    offers: frozenset[str] = frozenset()


@dataclass(frozen=True)
class Factory:
    """Builds the subject that a case asks for.

    `build(seed, dtype, config)` returns a subject. `dtypes` are those that a case may ask for,
    `choices` the values that a strategy may draw for each configuration field, and `fixed` the
    fields that the user has set. `seeded` says whether the model seed changes the weights.
    """

    name: str
    build: Callable[[int, str, Mapping[str, Any]], Any]
    dtypes: tuple[str, ...]
    choices: Mapping[str, tuple[Any, ...]] = field(default_factory=dict)
    fixed: Mapping[str, Any] = field(default_factory=dict)
    seeded: bool = True

    def subject(self, case: Case) -> Subject:
        """The subject that `case` runs on. Raises InvalidSubject, or InvalidCase if the case
        does not fit it (a token out of range, a row too long)."""
        try:
            subject = self.build(case.seed, case.dtype, case.config)
        except KvfuzzError:
            raise
        except (Exception, SystemExit) as error:
            raise InvalidSubject(f"{self.name} could not be built: {one_line(error)}") from error
        return require_fit(require_protocol(subject, self.name), case, self.name)

    def first_config(self) -> dict[str, Any]:
        """The configuration that the simplest case has."""
        return {**{name: values[0] for name, values in self.choices.items()}, **self.fixed}

    def limits(self) -> Limits:
        """The limits of the simplest subject, which every drawn one must share."""
        subject = self._simplest()
        return Limits(subject.vocab_size, subject.max_length, offers_of(subject, self.name))

    def _simplest(self) -> Subject:
        case = Case(((0,),), (1,), dtype=self.dtypes[0], config=self.first_config())
        return self.subject(case)


def require_protocol(subject: Any, name: str) -> Subject:
    """`subject`, once it is known to offer the protocol. Raises InvalidSubject naming what it
    lacks; whether its values are right is for the cases to tell."""
    if isinstance(subject, type):
        raise InvalidSubject(f"{name} is a class: give an instance of it, or a factory to fuzz")
    for method, arguments in METHODS.items():
        if not callable(getattr(subject, method, None)):
            raise InvalidSubject(
                f"{name} has no method {method}({', '.join(arguments)}): a subject offers "
                "uncached, new_cache and cached (got " + type(subject).__name__ + ")"
            )
    vocab_size = getattr(subject, "vocab_size", None)
    if not _is_count(vocab_size):
        raise InvalidSubject(f"{name}.vocab_size should be a positive integer, got {vocab_size!r}")
    if not hasattr(subject, "max_length"):
        raise InvalidSubject(f"{name} has no max_length: give an integer, or None if unlimited")
    max_length = subject.max_length
    if max_length is not None and not _is_count(max_length):
        raise InvalidSubject(f"{name}.max_length should be positive or None, got {max_length!r}")
    _check_cache(subject, name)
    found: Subject = subject
    return found


def offers_of(subject: Any, name: str = "subject") -> frozenset[str]:
    """The optional arguments of `cached` (`mask`, `positions`) and methods (OFFERED, with `load`
    counted by its `save`) that `subject` has. Raises InvalidSubject for one of another signature.
    """
    found = {word for word in OFFERED if callable(getattr(subject, word, None))}
    for word in sorted(found):
        arguments = OFFERED[word]
        if not _takes(getattr(subject, word), len(arguments)):
            raise InvalidSubject(f"{name}.{word} should be a method {word}({', '.join(arguments)})")
    if ("save" in found) != ("load" in found):
        there, lacking = ("save", "load") if "save" in found else ("load", "save")
        raise InvalidSubject(f"{name} has {there} but no {lacking}: both or neither")
    taken = _keywords(subject.cached) & set(GIVEN)
    if getattr(subject, "positions_from_mask", False) and "mask" not in taken:
        raise InvalidSubject(f"{name}.positions_from_mask needs an argument mask of cached()")
    if getattr(subject, "positions_from_mask", False):
        taken |= {"positions_from_mask"}
    return frozenset((found - {"load"}) | taken)


def _takes(method: Any, count: int) -> bool:
    """Whether `method` can be called with `count` arguments."""
    try:
        inspect.signature(method).bind(*(None,) * count)
    except TypeError:
        return False
    except ValueError:
        return callable(method)  # a builtin that has no signature to show
    return True


def _keywords(method: Any) -> set[str]:
    """The arguments of `method` that can be given by name."""
    try:
        parameters = inspect.signature(method).parameters.values()
    except (TypeError, ValueError):
        return set()
    return {p.name for p in parameters if p.kind in (p.KEYWORD_ONLY, p.POSITIONAL_OR_KEYWORD)}


def cache_dtype(subject: Any) -> torch.dtype | None:
    """The dtype that `subject` says its cache rounds to; None if it says nothing."""
    said = getattr(subject, "cache_dtype", None)
    return getattr(torch, said, None) if isinstance(said, str) else said


def _check_cache(subject: Any, name: str) -> None:
    """Raise InvalidSubject if what `subject` says about its cache makes no sense."""
    said = getattr(subject, "cache_dtype", None)
    if said is not None and cache_dtype(subject) not in list(ROUNDOFF):
        known = ", ".join(map(dtype_name, ROUNDOFF))
        raise InvalidSubject(f"{name}.cache_dtype should be one of {known}, got {said!r}")
    bound = getattr(subject, "cache_bound", None)
    if bound is None:
        return
    if said is None:
        raise InvalidSubject(f"{name}.cache_bound needs a cache_dtype beside it")
    counts = isinstance(bound, int | float) and not isinstance(bound, bool)
    if not counts or not (0 < bound < 1 or bound == math.inf):
        raise InvalidSubject(
            f"{name}.cache_bound should be a share of the largest logit between 0 and 1, or inf "
            f"where there is no bound, got {bound!r}"
        )


def require_fit(subject: Subject, case: Case, name: str) -> Subject:
    """`subject`, once it is known that `case` fits its vocabulary, its length and its offers."""
    longest = case.length if case.is_plain else max(len(s.after[0]) for s in case.steps())
    if subject.max_length is not None and longest > subject.max_length:
        raise InvalidCase(
            f"rows of {longest} tokens are longer than {name} takes "
            f"(max_length {subject.max_length})"
        )
    if needed := needs(case) - (offers_of(subject, name) if not case.is_simple else frozenset()):
        lacking = min(needed)
        arguments = OFFERED.get(lacking)
        what = (
            f"method {lacking}({', '.join(arguments)})"
            if arguments
            else (f"argument {lacking} of cached()")
        )
        raise InvalidCase(f"{name} has no {what}, which this case needs")
    for row, tokens in enumerate(case.tokens):
        for position, token in enumerate(tokens):
            if not 0 <= token < subject.vocab_size:
                raise InvalidCase(
                    f"token {token} at row {row}, position {position} is out of range for {name} "
                    f"(vocab_size {subject.vocab_size})"
                )
    return subject


NEEDS = {"crop": "crop", "fork": "copy", "restore": "save", "reset": "reset"} | dict.fromkeys(
    ("reorder", "select", "repeat"), "reorder"
)
"""What each kind of step needs of a subject, beyond the protocol."""


def needs(case: Case) -> frozenset[str]:
    """What `case` needs of a subject beyond the protocol."""
    if case.is_simple:
        return frozenset()
    return frozenset(case.given) | {NEEDS[s.kind] for s in case.steps() if s.kind in NEEDS}


def device_of(subject: Any) -> torch.device:
    """Where `subject` wants its tokens: its `device`, or that of its `model`, or the CPU."""
    if getattr(subject, "device", None) is not None:
        return torch.device(subject.device)
    model = getattr(subject, "model", None)
    if isinstance(model, torch.nn.Module):
        for parameter in model.parameters():
            return parameter.device
    return torch.device("cpu")


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value > 0
