"""Run a subject over tokens, without its cache and with it."""

from __future__ import annotations

import functools
import pickle
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from kvfuzz.case.case import Case, Step
from kvfuzz.case.layout import fed_positions, layout, text_mask
from kvfuzz.case.schedule import Crop, Fork, New, Reorder, Reset, Restore
from kvfuzz.errors import InvalidSubject, message_of
from kvfuzz.subjects.protocol import Subject, device_of

Rows = Sequence[Sequence[int]]


class CachedPathRaised(Exception):
    """The cached path raised at `step`; the error is this exception's cause."""

    def __init__(self, step: Step, error: Exception) -> None:
        super().__init__(message_of(error))
        self.step = step
        self.error = error


class Refused(Exception):
    """The subject refused `step` by raising NotImplementedError: it offers such an operation, but
    not on this cache."""

    def __init__(self, step: Step, error: NotImplementedError) -> None:
        super().__init__(f"{step.kind} refused: {message_of(error) or 'it gave no reason'}")
        self.step = step


class Exited(Exception):
    """A path called sys.exit(): an error like any other, not the end of the command."""

    def __init__(self, error: SystemExit) -> None:
        super().__init__(f"it called sys.exit({error.code!r})")


@torch.no_grad()
def run_uncached(subject: Subject, tokens: Rows, name: str = "subject") -> Tensor:
    """Logits [batch, time, vocab] of one uncached pass over `tokens` [batch, time].

    Raises InvalidSubject if they have another shape; whatever the subject raises passes through.
    """
    try:
        logits = subject.uncached(as_tensor(subject, tokens))
    except SystemExit as error:
        raise Exited(error) from error
    # A subject may answer with views of its own buffers, and overwrite them at the next call.
    return _checked(logits, (len(tokens), len(tokens[0])), subject, f"{name}.uncached()").clone()


@torch.no_grad()
def run_cached(
    subject: Subject,
    case: Case,
    name: str = "subject",
    begin: Callable[[Step], object] | None = None,
) -> Tensor:
    """Logits [rows, columns, vocab] of the token table of `case`, fed through caches by its steps;
    nought where nothing was fed. `begin` is called with each step before it.

    Raises CachedPathRaised at the step where the subject raised, Refused where it would not do what
    the step asks, and InvalidSubject if its logits have another shape or it does not return what
    the protocol says.
    """
    whole = as_tensor(subject, case.tokens)
    caches: list[Any] = []
    pieces: list[tuple[Step, Tensor]] = []
    for step in case.steps():
        if begin is not None:
            begin(step)
        try:
            if not caches and step.kind != "new":
                caches.append(subject.new_cache(case.batch))
            if step.feeds:
                pieces.append((step, _fed(subject, case, step, whole, caches, name)))
            else:
                _operated(subject, step, caches, name)
        except InvalidSubject:
            raise
        except NotImplementedError as error:
            raise Refused(step, error) from error
        except SystemExit as error:
            raise CachedPathRaised(step, Exited(error)) from error
        except Exception as error:
            raise CachedPathRaised(step, error) from error
    if case.is_plain:
        return torch.cat([logits for _, logits in pieces], dim=1)
    return _table(case, pieces)


def _fed(
    subject: Any, case: Case, step: Step, whole: Tensor, caches: list[Any], name: str
) -> Tensor:
    """The logits [batch, n, vocab] of a step that feeds."""
    cache = caches[step.cache]
    _poison(subject, cache)
    chunk = whole[: step.batch, step.start : step.stop].clone()
    answer = subject.cached(chunk, cache, **_given(case, step, whole.device))
    if not isinstance(answer, tuple) or len(answer) != 2:
        raise InvalidSubject(
            f"{name}.cached() should return (logits, cache), got {type(answer).__name__}"
        )
    logits, caches[step.cache] = answer
    return _checked(logits, (step.batch, step.size), subject, f"{name}.cached()").clone()


def _given(case: Case, step: Step, device: torch.device) -> dict[str, Tensor]:
    """The optional arguments of the call of `step`."""
    given: dict[str, Tensor] = {}
    if "mask" in case.given:
        given["mask"] = torch.tensor(text_mask(step.after), device=device)
    if "positions" in case.given:
        given["positions"] = torch.tensor(fed_positions(step), device=device)
    return given


def _operated(subject: Any, step: Step, caches: list[Any], name: str) -> None:
    """Do to `caches` what a step that feeds nothing says."""
    if isinstance(step.operation, New):
        caches.append(subject.new_cache(step.operation.rows))
        return
    cache = caches[step.cache if step.source is None else step.source]

    def kept(found: Any, word: str) -> Any:
        """The cache that a method returned. Raises InvalidSubject if it returned nothing, as one
        does that changes its argument and no more; unless that is what an empty cache is."""
        nothing = found is None and cache is not None
        if nothing and (step.after[0] or subject.new_cache(step.batch) is not None):
            raise InvalidSubject(f"{name}.{word}() should return the cache, got None")
        return found

    match step.operation:
        case Fork():
            caches.append(kept(subject.copy(cache), "copy"))
        case Restore():
            state = pickle.loads(pickle.dumps(subject.save(cache)))
            caches[step.cache] = kept(subject.load(state), "load")
        case Crop(count):
            caches[step.cache] = kept(subject.crop(cache, count), "crop")
        case Reorder(rows):
            index = torch.tensor(rows, device=device_of(subject))
            caches[step.cache] = kept(subject.reorder(cache, index), "reorder")
        case Reset():
            caches[step.cache] = kept(subject.reset(cache), "reset")


POISON = 1e4
"""What unused slots hold: large, finite, and in the range of every dtype of a cache but one."""


def _poison(subject: Any, cache: Any) -> None:
    """Fill what `subject` says is unused in `cache`, so that a read of it shows."""
    if not callable(getattr(subject, "unused", None)):
        return
    with torch._C.DisableTorchFunction():  # this is no operation of the subject's
        for tensor in subject.unused(cache):
            if tensor.is_floating_point():
                tensor.fill_(min(POISON, torch.finfo(tensor.dtype).max))
            elif tensor.dtype != torch.bool:
                tensor.fill_(torch.iinfo(tensor.dtype).max)


def _table(case: Case, pieces: Sequence[tuple[Step, Tensor]]) -> Tensor:
    """The logits of all steps at the cells of the token table."""
    first = pieces[0][1]
    dtype = functools.reduce(torch.promote_types, (logits.dtype for _, logits in pieces))
    table = first.new_zeros((case.batch, case.length, first.shape[-1]), dtype=dtype)
    for step, logits in pieces:
        table[: step.batch, step.start : step.stop] = logits
    if "mask" in case.given:
        table[~layout(case).fed.to(table.device)] = 0.0  # what padding gives, nobody reads
    return table


@contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Inside, torch's global generator starts from `seed`; afterwards it is as it was before."""
    state = torch.random.get_rng_state()
    torch.default_generator.manual_seed(seed)
    try:
        yield
    finally:
        torch.random.set_rng_state(state)


def as_tensor(subject: Subject, tokens: Rows) -> Tensor:
    """`tokens` as int64 [batch, time], where the subject wants them."""
    return torch.tensor([list(row) for row in tokens], dtype=torch.int64, device=device_of(subject))


def _checked(logits: Any, shape: tuple[int, int], subject: Subject, call: str) -> Tensor:
    expected = (*shape, subject.vocab_size)
    if not isinstance(logits, Tensor):
        raise InvalidSubject(
            f"{call} should return a tensor of logits, got {type(logits).__name__}"
        )
    if tuple(logits.shape) != expected:
        raise InvalidSubject(
            f"{call} returned logits of shape {tuple(logits.shape)} for {shape[1]} tokens in "
            f"{shape[0]} rows, expected {expected} [batch, time, vocab]"
        )
    if not logits.is_floating_point():
        raise InvalidSubject(f"{call} returned logits of dtype {logits.dtype}, expected floats")
    return logits
