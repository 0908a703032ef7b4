"""Runs a subject over tokens, without its cache and with it."""

from __future__ import annotations

import functools
import pickle
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from kvfuzz.case.case import KEEP, Case, Step
from kvfuzz.case.layout import fed_positions, layout, real_tokens, text_mask
from kvfuzz.case.schedule import (
    Crop,
    Fork,
    Join,
    New,
    Ragged,
    Reorder,
    Reset,
    Restore,
    Rollback,
    Tree,
)
from kvfuzz.errors import InvalidSubject, message_of
from kvfuzz.subjects.call_limits import call_limits_of
from kvfuzz.subjects.needs import LENGTHS, PARENTS
from kvfuzz.subjects.protocol import Subject, device_of, release
from kvfuzz.subjects.sides import sides_of
from kvfuzz.subjects.uninitialised import filling_uninitialised

Rows = Sequence[Sequence[int]]


class CachedPathRaised(Exception):
    """The cached path raised `error` at `step`."""

    def __init__(self, step: Step, error: Exception) -> None:
        super().__init__(message_of(error))
        self.step = step
        self.error = error


class Refused(Exception):
    """The subject refused `step` by NotImplementedError: it offers the operation, but not on this
    cache."""

    def __init__(self, step: Step, error: NotImplementedError) -> None:
        super().__init__(f"{step.kind} refused: {message_of(error) or 'it gave no reason'}")
        self.step = step


class Exited(Exception):
    """A path called sys.exit(), which counts as any other error and ends nothing."""

    def __init__(self, error: SystemExit) -> None:
        super().__init__(f"it called sys.exit({error.code!r})")


class NotKept(Exception):
    """A call did not return the logits of as many positions as it was asked for."""


@dataclass(eq=False)
class Passes:
    """The number of forward passes: calls of a subject's uncached or cached path, or of its
    `perturbed`."""

    count: int = 0


_counting: list[Passes] = []


@contextmanager
def count_passes() -> Iterator[Passes]:
    """Counts the forward passes that run inside."""
    passes = Passes()
    _counting.append(passes)
    try:
        yield passes
    finally:
        _counting.remove(passes)


def note_pass() -> None:
    """Counts one forward pass; for callers that do not go through the functions of this file."""
    for passes in _counting:
        passes.count += 1


@torch.no_grad()
def run_uncached(subject: Subject, tokens: Rows, name: str = "subject") -> Tensor:
    """Returns the logits [batch, time, vocab] of one uncached run over `tokens` [batch, time]; of
    several, if the subject takes fewer rows in a call.

    Raises InvalidSubject if they have another shape, and whatever the subject raises.
    """
    if len(parts := in_calls(subject, tokens)) > 1:
        return torch.cat([run_uncached(subject, part, name) for part in parts])
    note_pass()
    try:
        rows = as_tensor(subject, tokens)
        logits = subject.uncached(rows, **sides_of(subject, tokens, rows.device))
    except SystemExit as error:
        raise Exited(error) from error
    # Cloned: a subject may return a view of its own buffer and overwrite that in the next call.
    return _check(logits, (len(tokens), len(tokens[0])), subject, f"{name}.uncached()").clone()


def in_calls(subject: Any, tokens: Rows) -> list[Rows]:
    """Divides the rows of `tokens` [batch, time] among calls of the uncached path: one, unless the
    subject takes fewer rows."""
    most = call_limits_of(subject).rows or len(tokens)
    return [tokens[start : start + most] for start in range(0, len(tokens), most)]


@torch.no_grad()
@filling_uninitialised()
def run_cached(
    subject: Subject,
    case: Case,
    name: str = "subject",
    begin: Callable[[Step], object] | None = None,
) -> Tensor:
    """Runs the steps of `case` on caches; returns the logits [rows, columns, vocab] of its token
    table, zero where nothing was fed and where a call returns none (`compared`). Calls `begin` with
    each step before it runs. Memory that the subject allocates without writing it holds NaN.

    Raises CachedPathRaised if the subject raises in a step, Refused if it refuses one, and
    InvalidSubject if its logits have another shape or it breaks the protocol.
    """
    whole = as_tensor(subject, case.tokens)
    caches: list[Any] = []
    pieces: list[tuple[Step, Tensor]] = []
    live = _LiveCaches(subject, case, caches)
    try:
        for step in case.steps():
            if begin is not None:
                begin(step)
            with _blame(step):
                if not caches and step.kind != "new":
                    caches.append(subject.new_cache(case.batch))
                if step.feeds:
                    pieces.append((step, _feed(subject, case, step, whole, caches, name)))
                else:
                    _operate(subject, step, caches, name)
                live.release_after(step)
    finally:
        live.release_all()
    if case.is_plain:
        return torch.cat([logits for _, logits in pieces], dim=1)
    return _table(case, pieces)


@contextmanager
def _blame(step: Step) -> Iterator[None]:
    """Raises what is raised inside as the failure, or the refusal, of `step`."""
    try:
        yield
    except InvalidSubject:
        raise
    except NotImplementedError as error:
        raise Refused(step, error) from error
    except SystemExit as error:
        raise CachedPathRaised(step, Exited(error)) from error
    except Exception as error:
        raise CachedPathRaised(step, error) from error


def last_uses(case: Case) -> dict[int, int]:
    """Returns, for the number of each cache, the index of the last step that uses it."""
    last: dict[int, int] = {}
    for step in case.steps():
        last[step.cache] = step.index
        if step.source is not None:
            last[step.source] = step.index
    return last


class _LiveCaches:
    """Releases each of `caches` once, after the last step of `case` that uses it, if `subject`
    offers that: a pool then gives its slots to the next cache."""

    def __init__(self, subject: Any, case: Case, caches: list[Any]) -> None:
        self._subject, self._caches = subject, caches
        offered = callable(getattr(subject, "release", None))
        self._due = last_uses(case) if offered else {}

    def release_after(self, step: Step) -> None:
        if isinstance(step.operation, Join):
            self._due.pop(step.operation.cache, None)  # the cache that took its rows is released
        for number in [n for n, last in self._due.items() if last == step.index]:
            del self._due[number]
            self._subject.release(self._caches[number])

    def release_all(self) -> None:
        """Releases the caches that a step which raised has left behind."""
        for number in [n for n in self._due if n < len(self._caches)]:
            del self._due[number]
            with suppress(Exception, SystemExit):
                self._subject.release(self._caches[number])


def _feed(
    subject: Any, case: Case, step: Step, whole: Tensor, caches: list[Any], name: str
) -> Tensor:
    """Runs a step that feeds; returns its logits [batch, size, vocab]."""
    cache = caches[step.cache]
    _poison(subject, cache)
    chunk = whole[: step.batch, step.start : step.stop].clone()
    note_pass()
    texts = [real_tokens(row) for row in step.after]
    sides = sides_of(subject, texts, whole.device)
    answer = subject.cached(chunk, cache, **_given(case, step, whole.device), **sides)
    if not isinstance(answer, tuple) or len(answer) != 2:
        raise InvalidSubject(
            f"{name}.cached() should return (logits, cache), got {type(answer).__name__}"
        )
    logits, caches[step.cache] = answer
    if isinstance(step.operation, Tree):
        kept = torch.tensor(step.operation.kept, device=whole.device)
        caches[step.cache] = subject.accept(caches[step.cache], kept)
        if caches[step.cache] is None:
            raise InvalidSubject(f"{name}.accept() should return the cache, got None")
    return _filled_up(logits, step, case, subject, f"{name}.cached()")


def _filled_up(logits: Any, step: Step, case: Case, subject: Subject, call: str) -> Tensor:
    """Returns the `logits` that `call` returned, with zeros in front for the positions of `step` of
    which a call returns none. Raises NotKept where another number of positions was asked for."""
    due = step.size if (most := _most_kept(subject, case)) is None else min(most, step.size)
    found = logits.shape[1] if isinstance(logits, Tensor) and logits.dim() == 3 else due
    fewer = found < due and call_limits_of(subject).last_only
    if fewer or (case.keep is not None and found != due):
        asked = "last_only declares" if fewer else f"{KEEP} asked for"
        raise NotKept(
            f"it returned the logits of {found} of {step.size} positions, and {asked} {due}"
        )
    checked = _check(logits, (step.batch, due), subject, call, step.size)
    if due == step.size:
        return checked.clone()
    if isinstance(step.operation, Ragged) and case.keep is None:
        # The only position of each row is that of its own last token.
        return checked.expand(-1, step.size, -1).clone()
    return F.pad(checked, (0, 0, step.size - due, 0))


def _most_kept(subject: Subject, case: Case) -> int | None:
    """Returns of how many last positions a call returns logits; None for all."""
    return 1 if call_limits_of(subject).last_only else case.keep or None


def compared(subject: Subject, case: Case) -> Tensor | None:
    """Returns which cells of the token table of `case` have logits to compare, bool [rows,
    columns]: those of text, at the positions of which a call returns logits. None for all."""
    found, most = layout(case), _most_kept(subject, case)
    if most is None:
        return None if found.plain else found.fed
    kept = torch.zeros(case.batch, case.length, dtype=torch.bool)
    for step in case.steps():
        if isinstance(step.operation, Ragged) and case.keep is None:
            for row, length in enumerate(step.operation.lengths):
                kept[row, step.start + max(0, length - 1)] = True  # of no token, none is fed
        else:
            kept[:, max(step.start, step.stop - most) : step.stop] = True
    return found.fed & kept


def _given(case: Case, step: Step, device: torch.device) -> dict[str, Any]:
    """Returns the optional arguments of the call of `step`."""
    given: dict[str, Any] = {}
    if case.keep is not None:
        given[KEEP] = min(case.keep, step.size)
    if isinstance(step.operation, Ragged):
        given[LENGTHS] = torch.tensor(step.operation.lengths, device=device)
    if isinstance(step.operation, Tree):
        given[PARENTS] = torch.tensor(step.operation.parents, device=device)
    if "mask" in case.given:
        given["mask"] = torch.tensor(text_mask(step.after), device=device)
    if "positions" in case.given:
        given["positions"] = torch.tensor(fed_positions(step), device=device)
    return given


def _operate(subject: Any, step: Step, caches: list[Any], name: str) -> None:
    """Runs a step that feeds nothing on `caches`."""
    if isinstance(step.operation, New):
        caches.append(subject.new_cache(step.operation.rows))
        return
    copied = step.source if isinstance(step.operation, Fork) else None
    cache = caches[step.cache if copied is None else copied]

    def kept(found: Any, word: str) -> Any:
        """Returns the cache that a method returned. Raises InvalidSubject for None, which a method
        returns that only changes its argument; unless None is how the subject writes an empty
        cache."""
        nothing = found is None and cache is not None
        if nothing and (step.after[0] or not _writes_empty_as_none(subject, step.batch)):
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
        case Rollback(counts):
            each = torch.tensor(counts, device=device_of(subject))
            caches[step.cache] = kept(subject.rollback(cache, each), "rollback")
        case Join(number):
            caches[step.cache] = kept(subject.join(cache, caches[number]), "join")
        case Reorder(rows):
            index = torch.tensor(rows, device=device_of(subject))
            caches[step.cache] = kept(subject.reorder(cache, index), "reorder")
        case Reset():
            caches[step.cache] = kept(subject.reset(cache), "reset")


def _writes_empty_as_none(subject: Any, batch: int) -> bool:
    empty = subject.new_cache(batch)
    release(subject, empty)
    return empty is None


POISON = 1e4
"""The value of unused slots: large, finite, and in the range of all cache dtypes but one."""


def _poison(subject: Any, cache: Any) -> None:
    """Fills the slots that `subject` calls unused in `cache`, so that reading one shows."""
    if not callable(getattr(subject, "unused", None)):
        return
    with torch._C.DisableTorchFunction():  # keeps these operations out of the locator's trace
        for tensor in subject.unused(cache):
            if tensor.is_floating_point():
                # Products of it with ordinary numbers have to stay finite, as in float16.
                tensor.fill_(min(POISON, torch.finfo(tensor.dtype).max ** 0.5))
            elif tensor.dtype != torch.bool:
                tensor.fill_(torch.iinfo(tensor.dtype).max)


def _table(case: Case, pieces: Sequence[tuple[Step, Tensor]]) -> Tensor:
    """Puts the logits of all steps into the cells of the token table."""
    first = pieces[0][1]
    dtype = functools.reduce(torch.promote_types, (logits.dtype for _, logits in pieces))
    table = first.new_zeros((case.batch, case.length, first.shape[-1]), dtype=dtype)
    for step, logits in pieces:
        table[: step.batch, step.start : step.stop] = logits
    if "mask" in case.given:
        table[~layout(case).fed.to(table.device)] = 0.0  # nobody reads the logits of padding
    return table


@contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Seeds torch's global generator inside the context, and restores its state afterwards."""
    state = torch.random.get_rng_state()
    torch.default_generator.manual_seed(seed)
    try:
        yield
    finally:
        torch.random.set_rng_state(state)


def as_tensor(subject: Subject, tokens: Rows) -> Tensor:
    """Returns `tokens` as int64 [batch, time] on the device of `subject`."""
    return torch.tensor([list(row) for row in tokens], dtype=torch.int64, device=device_of(subject))


def _check(
    logits: Any, shape: tuple[int, int], subject: Subject, call: str, fed: int | None = None
) -> Tensor:
    """Returns `logits` if they are floats [*shape, vocab]; raises InvalidSubject if not. `fed` is
    the number of tokens of a call with a cache."""
    expected = (*shape, subject.vocab_size)
    if not isinstance(logits, Tensor):
        raise InvalidSubject(
            f"{call} should return a tensor of logits, got {type(logits).__name__}"
        )
    if tuple(logits.shape) != expected:
        last = fed is not None and tuple(logits.shape) == (shape[0], 1, subject.vocab_size)
        raise InvalidSubject(
            f"{call} returned logits of shape {tuple(logits.shape)} for {fed or shape[1]} tokens "
            f"in {shape[0]} rows, expected {expected} [batch, time, vocab]"
            + (": last_only = True declares logits of the last position alone" if last else "")
        )
    if not logits.is_floating_point():
        raise InvalidSubject(f"{call} returned logits of dtype {logits.dtype}, expected floats")
    return logits
