"""Run a subject over tokens, without its cache and with it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from kvfuzz.case import Step
from kvfuzz.errors import InvalidSubject
from kvfuzz.subject import Subject, device_of

Rows = Sequence[Sequence[int]]


class CachedPathRaised(Exception):
    """The cached path raised at `step`; the error is this exception's cause."""

    def __init__(self, step: Step, error: Exception) -> None:
        super().__init__(str(error))
        self.step = step
        self.error = error


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
    subject: Subject, tokens: Rows, steps: Iterable[Step], name: str = "subject"
) -> Tensor:
    """Logits [batch, time, vocab] of `tokens` [batch, time], fed through one cache by `steps`.

    Raises CachedPathRaised at the step where the subject raised, and InvalidSubject if its
    logits have another shape or it does not return the pair (logits, cache).
    """
    whole = as_tensor(subject, tokens)
    pieces = []
    cache: Any = None
    for step in steps:
        chunk = whole[:, step.start : step.stop].clone()
        try:
            if step.index == 0:
                cache = subject.new_cache(len(tokens))
            answer = subject.cached(chunk, cache)
        except InvalidSubject:
            raise
        except SystemExit as error:
            raise CachedPathRaised(step, Exited(error)) from error
        except Exception as error:
            raise CachedPathRaised(step, error) from error
        if not isinstance(answer, tuple) or len(answer) != 2:
            raise InvalidSubject(
                f"{name}.cached() should return (logits, cache), got {type(answer).__name__}"
            )
        logits, cache = answer
        shape = (len(tokens), step.stop - step.start)
        pieces.append(_checked(logits, shape, subject, f"{name}.cached()").clone())
    return torch.cat(pieces, dim=1)


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
