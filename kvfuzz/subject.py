"""The boundary: what a decoder under test must offer, and how one is named, found and built.

A *subject* is one decoder. A *factory* builds subjects: one per model seed, dtype and drawn
configuration, so that weights and settings vary from case to case.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor

from kvfuzz.case import Case
from kvfuzz.errors import InvalidCase, InvalidSubject, KvfuzzError, one_line
from kvfuzz.tolerance import ROUNDOFF, name_of

METHODS = {"uncached": ("tokens",), "new_cache": ("batch",), "cached": ("tokens", "cache")}


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
    None) and of random perturbations of them by a relative `size` (see `kvfuzz.noise`).
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
    """What a strategy may draw from: token ids below `vocab_size`, rows up to `max_length`."""

    vocab_size: int
    max_length: int | None


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
        return fitting(conforming(subject, self.name), case, self.name)

    def first_config(self) -> dict[str, Any]:
        """The configuration that the simplest case has."""
        return {**{name: values[0] for name, values in self.choices.items()}, **self.fixed}

    def limits(self) -> Limits:
        """The limits of the simplest subject, which every drawn one must share."""
        case = Case(((0,),), (1,), dtype=self.dtypes[0], config=self.first_config())
        subject = self.subject(case)
        return Limits(subject.vocab_size, subject.max_length)


def conforming(subject: Any, name: str) -> Subject:
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


def cache_dtype(subject: Any) -> torch.dtype | None:
    """The dtype that `subject` says its cache rounds to; None if it says nothing."""
    said = getattr(subject, "cache_dtype", None)
    return getattr(torch, said, None) if isinstance(said, str) else said


def _check_cache(subject: Any, name: str) -> None:
    """Raise InvalidSubject if what `subject` says about its cache makes no sense."""
    said = getattr(subject, "cache_dtype", None)
    if said is not None and cache_dtype(subject) not in list(ROUNDOFF):
        known = ", ".join(map(name_of, ROUNDOFF))
        raise InvalidSubject(f"{name}.cache_dtype should be one of {known}, got {said!r}")
    bound = getattr(subject, "cache_bound", None)
    if bound is None:
        return
    if said is None:
        raise InvalidSubject(f"{name}.cache_bound needs a cache_dtype beside it")
    if isinstance(bound, bool) or not isinstance(bound, int | float) or not 0 < bound < 1:
        raise InvalidSubject(
            f"{name}.cache_bound should be a share of the largest logit between 0 and 1, "
            f"got {bound!r}"
        )


def fitting(subject: Subject, case: Case, name: str) -> Subject:
    """`subject`, once it is known that `case` fits its vocabulary and its length."""
    if subject.max_length is not None and case.length > subject.max_length:
        raise InvalidCase(
            f"rows of {case.length} tokens are longer than {name} takes "
            f"(max_length {subject.max_length})"
        )
    for row, tokens in enumerate(case.tokens):
        for position, token in enumerate(tokens):
            if not 0 <= token < subject.vocab_size:
                raise InvalidCase(
                    f"token {token} at row {row}, position {position} is out of range for {name} "
                    f"(vocab_size {subject.vocab_size})"
                )
    return subject


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
