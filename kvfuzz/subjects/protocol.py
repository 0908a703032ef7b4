"""The protocol of a decoder under test, and the checks that it is kept.

A *subject* is one decoder. A *factory* builds subjects: one for each model seed, dtype and drawn
configuration, so that weights and settings vary from case to case.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor

from kvfuzz.case.case import GIVEN, KEEP, Case
from kvfuzz.errors import InvalidCase, InvalidSubject, KvfuzzError, one_line
from kvfuzz.subjects.boundaries import Boundary, find_boundaries
from kvfuzz.subjects.call_limits import ANY_CALL, LIMITS, CallLimits, call_limits_of
from kvfuzz.subjects.dtypes import ROUNDOFF, dtype_name
from kvfuzz.subjects.needs import LENGTHS, PARENTS, needs, uses_two_caches
from kvfuzz.subjects.sides import SIDE_INPUTS, require_sides, sides_of

METHODS = {"uncached": ("tokens",), "new_cache": ("batch",), "cached": ("tokens", "cache")}
OFFERED = {
    "crop": ("cache", "count"),
    "rollback": ("cache", "counts"),
    "join": ("cache", "other"),
    "accept": ("cache", "candidates"),
    "reorder": ("cache", "rows"),
    "copy": ("cache",),
    "save": ("cache",),
    "load": ("state",),
    "reset": ("cache",),
    "view": ("cache",),
    "unused": ("cache",),
    "generate": ("tokens", "length", "beams", "cached"),
    "release": ("cache",),
}
"""The optional methods of a subject, and the arguments of each."""
ONE_CACHE = "one_cache_at_a_time"
"""The attribute of a subject by which it declares that a new cache ends the one before."""
NO_HANDLE = "no_handle"
"""Stands among the offers of a subject that says nothing of ONE_CACHE, and whose caches cannot be
distinguished: `new_cache` and `cached` hand out nothing, so the cache is in the model."""


@runtime_checkable
class Subject(Protocol):
    """A decoder under test. Tokens are int64 [batch, time]; logits are [batch, time, vocab].

    Optional attributes:

    - `model`: the torch module behind both paths;
    - `device`: where to put tokens;
    - `width`: the size of the residual stream (narrow decoders are allowed larger differences if
      noise cannot be measured);
    - `trace(record)`: a context manager inside which both paths report their states
      (`kvfuzz.locate`);
    - `cache_dtype`: the dtype of a cache that rounds on purpose; `cache_bound`: how far that may
      move a logit, as a share of the largest logit of the position;
    - `one_cache_at_a_time`: true if `new_cache` ends the cache that was made before it, as where
      the modules of the model hold the cache. Then caches are used one after the other, and no
      copy is made of one;
    - `longest_call`, `chunks`, `multiple_of`: a call takes at most so many tokens; False if a
      filled cache takes single tokens only; a call of several tokens takes a multiple of so many;
    - `max_rows`: no call of either path gets more rows; `padding_between`: False if a row has
      padding only before its first token;
    - `side_inputs`: how many side inputs there are, if rows have any; both paths then take `sides`
      (`kvfuzz.subjects.sides`);
    - `last_only`: true if `cached` returns the logits [batch, 1, vocab] of the last position only;
    - `perturbed(tokens, size, draws)`: the uncached float64 logits [draws, batch, time, vocab] with
      weights perturbed at random by a relative `size`, for the draw None with the weights as they
      are, if the subject can run many sets of weights at once (`kvfuzz.oracle.noise`).

    Optional arguments of `cached` (`GIVEN`, `KEEP`, `LENGTHS`, `PARENTS`) and methods
    (`OFFERED`) offer more operations; docs/subjects.md defines each. A method refuses what a cache
    cannot do by raising NotImplementedError before it changes anything.
    """

    vocab_size: int
    max_length: int | None

    def uncached(self, tokens: Tensor) -> Tensor:
        """Returns logits [batch, time, vocab] for `tokens` [batch, time], without a cache."""

    def new_cache(self, batch: int) -> Any:
        """Returns an empty cache for `batch` rows."""

    def cached(self, tokens: Tensor, cache: Any) -> tuple[Tensor, Any]:
        """Returns logits [batch, time, vocab] for `tokens` alone, and the cache to pass next."""


@dataclass(frozen=True)
class Limits:
    """The cases that fit a subject: token ids below `vocab_size`, rows of up to `max_length` tokens
    (None: any), the optional arguments and methods that it `offers`, and the `calls` it takes. At
    its `boundaries` a row may reach code that shorter rows do not."""

    vocab_size: int
    max_length: int | None
    offers: frozenset[str] = frozenset()
    calls: CallLimits = ANY_CALL
    boundaries: tuple[Boundary, ...] = ()


@dataclass(frozen=True)
class Factory:
    """Builds the subject of a case by `build(seed, dtype, config)`.

    Cases draw from `dtypes` and, for each configuration field, from `choices`; the user has set the
    fields in `fixed`. `seeded` says whether the model seed changes the weights. `remarks` are what
    a user should know about how these subjects are built and what is not tried on them.
    A few cases run in each of the `narrow` dtypes too, which users put such a subject in.
    """

    name: str
    build: Callable[[int, str, Mapping[str, Any]], Any]
    dtypes: tuple[str, ...]
    choices: Mapping[str, tuple[Any, ...]] = field(default_factory=dict)
    fixed: Mapping[str, Any] = field(default_factory=dict)
    seeded: bool = True
    remarks: Sequence[str] = ()
    narrow: tuple[str, ...] = ()

    def subject(self, case: Case) -> Subject:
        """Builds and checks the subject of `case`. Raises InvalidSubject, or InvalidCase if the
        case does not fit it (a token out of range, a row too long).

        The oracle, the locator and the campaign check no subject again.
        """
        try:
            subject = self.build(case.seed, case.dtype, case.config)
        except KvfuzzError:
            raise
        except (Exception, SystemExit) as error:
            raise InvalidSubject(f"{self.name} could not be built: {one_line(error)}") from error
        checked = require_protocol(subject, self.name)
        require_fit(checked, case, self.name)
        return checked

    def first_config(self) -> dict[str, Any]:
        """Returns the configuration of the simplest case."""
        return {**{name: values[0] for name, values in self.choices.items()}, **self.fixed}

    def limits(self) -> Limits:
        """Returns the limits of the simplest subject, which all configurations must share."""
        case = Case(((0,),), (1,), dtype=self.dtypes[0], config=self.first_config())
        subject = self.subject(case)
        offers = offers_of(subject, self.name)
        if _hands_out_nothing(subject, offers):
            offers |= {NO_HANDLE}
        calls = call_limits_of(subject, self.name)
        boundaries = find_boundaries(subject, case.config, self.choices)
        return Limits(subject.vocab_size, subject.max_length, offers, calls, boundaries)


def require_protocol(subject: Any, name: str) -> Subject:
    """Returns `subject` if it keeps the protocol. Raises InvalidSubject, which names what it lacks.
    Calls nothing: the cases will show whether its methods work."""
    if isinstance(subject, type):
        raise InvalidSubject(f"{name} is a class: give an instance of it, or a factory to fuzz")
    for method, arguments in METHODS.items():
        if not callable(getattr(subject, method, None)):
            raise InvalidSubject(
                f"{name} has no method {method}({', '.join(arguments)}): a subject offers "
                "uncached, new_cache and cached (got " + type(subject).__name__ + ")"
            )
        if not _takes(getattr(subject, method), len(arguments)):
            raise InvalidSubject(
                f"{name}.{method} should be a method {method}({', '.join(arguments)})"
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
    require_sides(subject, name, _keywords(subject.uncached), _keywords(subject.cached))
    if call_limits_of(subject, name).last_only and KEEP in _keywords(subject.cached):
        raise InvalidSubject(
            f"{name} declares last_only, and its cached() takes {KEEP}: one or the other"
        )
    found: Subject = subject
    return found


def offers_of(subject: Any, name: str = "subject") -> frozenset[str]:
    """Returns the optional arguments of `cached` and optional methods of `subject`, `save` for
    `save` and `load`. Raises InvalidSubject for a method of another signature."""
    found = {word for word in OFFERED if callable(getattr(subject, word, None))}
    for word in sorted(found):
        arguments = OFFERED[word]
        if not _takes(getattr(subject, word), len(arguments)):
            raise InvalidSubject(f"{name}.{word} should be a method {word}({', '.join(arguments)})")
    if ("save" in found) != ("load" in found):
        there, lacking = ("save", "load") if "save" in found else ("load", "save")
        raise InvalidSubject(f"{name} has {there} but no {lacking}: both or neither")
    taken = _keywords(subject.cached) & {*GIVEN, KEEP, LENGTHS, PARENTS}
    if (PARENTS in taken) != ("accept" in found):
        both = f"an argument {PARENTS} of cached() and a method accept(cache, candidates)"
        raise InvalidSubject(f"{name} should have {both}: both or neither")
    if PARENTS in taken and getattr(subject, "last_only", False):
        raise InvalidSubject(f"{name} declares last_only, and its cached() takes {PARENTS}")
    if getattr(subject, "positions_from_mask", False) and "mask" not in taken:
        raise InvalidSubject(f"{name}.positions_from_mask needs an argument mask of cached()")
    if getattr(subject, "positions_from_mask", False):
        taken |= {"positions_from_mask"}
    if getattr(subject, ONE_CACHE, False):
        taken |= {ONE_CACHE}
    if getattr(subject, SIDE_INPUTS, None) is not None:
        taken |= {SIDE_INPUTS}
        found -= {"generate"}  # which gets no side inputs
    return frozenset((found - {"load"}) | taken)


def has_one_cache(offers: Collection[str]) -> bool:
    """Whether a subject with these `offers` holds one cache at a time: it says so, or hands out
    nothing by which a second one could be told from the first."""
    return ONE_CACHE in offers or NO_HANDLE in offers


def _hands_out_nothing(subject: Any, offers: Collection[str]) -> bool:
    """Whether `subject` hands out None, or its own model, for a cache that holds a token. Asks only
    a subject that neither declares how many caches it holds nor copies any."""
    if getattr(subject, ONE_CACHE, None) is not None or "copy" in offers:
        return False

    def is_nothing(cache: Any) -> bool:
        return cache is None or cache is subject or cache is getattr(subject, "model", subject)

    try:
        with torch.no_grad():
            empty = subject.new_cache(1)
            if not is_nothing(empty):
                release(subject, empty)
                return False
            token = torch.zeros((1, 1), dtype=torch.int64, device=device_of(subject))
            filled = subject.cached(
                token, empty, **sides_of(subject, token.tolist(), token.device)
            )[1]
            release(subject, filled)
        return is_nothing(filled)
    except (Exception, SystemExit):
        return False  # the cases will show what raises


def release(subject: Any, cache: Any) -> None:
    """Tells `subject` that `cache` is done with, if it wants to know."""
    if callable(getattr(subject, "release", None)):
        subject.release(cache)


def _takes(method: Any, count: int) -> bool:
    """Whether `method` can be called with `count` arguments."""
    # Every case makes a subject, and reading a signature takes longer than to draw small weights.
    # So the answer is kept for the function behind a method, which needs one argument more.
    function = getattr(method, "__func__", None)
    return _binds(method, count) if function is None else _binds_always(function, count + 1)


def _binds(function: Any, count: int) -> bool:
    try:
        inspect.signature(function).bind(*(None,) * count)
    except TypeError:
        return False
    except ValueError:
        return callable(function)  # a builtin without a signature
    return True


_binds_always = lru_cache(maxsize=1024)(_binds)


def _keywords(method: Any) -> frozenset[str]:
    """Returns the arguments of `method` that can be passed by name."""
    function = getattr(method, "__func__", None)
    return _names(method) if function is None else _names_always(function)


def _names(function: Any) -> frozenset[str]:
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        return frozenset()
    return frozenset(
        p.name for p in parameters if p.kind in (p.KEYWORD_ONLY, p.POSITIONAL_OR_KEYWORD)
    )


_names_always = lru_cache(maxsize=1024)(_names)


def cache_dtype(subject: Any) -> torch.dtype | None:
    """Returns the dtype that `subject` declares for its cache; None if it declares none."""
    said = getattr(subject, "cache_dtype", None)
    return getattr(torch, said, None) if isinstance(said, str) else said


def _check_cache(subject: Any, name: str) -> None:
    """Raises InvalidSubject if what `subject` declares about its cache makes no sense."""
    said = getattr(subject, "cache_dtype", None)
    if said is not None and cache_dtype(subject) not in list(ROUNDOFF):
        known = ", ".join(map(dtype_name, ROUNDOFF))
        raise InvalidSubject(f"{name}.cache_dtype should be one of {known}, got {said!r}")
    bound = getattr(subject, "cache_bound", None)
    if bound is None:
        return
    if said is None:
        raise InvalidSubject(f"{name}.cache_bound needs a cache_dtype, too")
    counts = isinstance(bound, int | float) and not isinstance(bound, bool)
    if not counts or not (0 < bound < 1 or bound == math.inf):
        raise InvalidSubject(
            f"{name}.cache_bound should be a share of the largest logit between 0 and 1, or inf "
            f"where there is no bound, got {bound!r}"
        )


def require_fit(subject: Subject, case: Case, name: str) -> None:
    """Raises InvalidCase if `case` does not fit the vocabulary, length and offers of `subject`."""
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
    if (step := call_limits_of(subject).refused_step(case)) is not None:
        what = f"{step.size} tokens in {step.batch} rows" if step.feeds else f"{step.batch} rows"
        raise InvalidCase(f"{name} takes no call of {what} here: {_limit_of(subject)}")
    if getattr(subject, ONE_CACHE, False) and uses_two_caches(case):
        raise InvalidCase(
            f"{name} declares {ONE_CACHE}, and this case goes back to an earlier cache, copies one "
            "or joins two"
        )
    for row, tokens in enumerate(case.tokens):
        for position, token in enumerate(tokens):
            if not 0 <= token < subject.vocab_size:
                raise InvalidCase(
                    f"token {token} at row {row}, position {position} is out of range for {name} "
                    f"(vocab_size {subject.vocab_size})"
                )


def _limit_of(subject: Any) -> str:
    said = {word: getattr(subject, word, None) for word in LIMITS}
    return "it declares " + ", ".join(f"{k} = {v}" for k, v in said.items() if v is not None)


def device_of(subject: Any) -> torch.device:
    """Returns the device for tokens: that of `subject`, else of its `model`, else the CPU."""
    if getattr(subject, "device", None) is not None:
        return torch.device(subject.device)
    model = getattr(subject, "model", None)
    if isinstance(model, torch.nn.Module):
        for parameter in model.parameters():
            return parameter.device
    return torch.device("cpu")


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value > 0
