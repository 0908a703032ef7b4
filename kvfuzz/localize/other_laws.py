"""Finds the line behind a verdict that does not compare the two paths: a cast to a lower precision,
or a run that is not the same when it is repeated."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace

import torch
from torch import Tensor

from kvfuzz.case.case import Case
from kvfuzz.case.layout import layout
from kvfuzz.localize.changed_runs import record_cached, record_whole
from kvfuzz.localize.leaks import locate_alone, locate_leak
from kvfuzz.localize.locate import locate
from kvfuzz.localize.location import Location
from kvfuzz.localize.operations.difference import abs_difference
from kvfuzz.localize.operations.events import OUTPUT, Event, Recording
from kvfuzz.localize.operations.record import WatchedSubject, record
from kvfuzz.subjects.dtypes import dtype_name
from kvfuzz.subjects.precision import is_coarser
from kvfuzz.subjects.protocol import Factory, Subject
from kvfuzz.subjects.run import CachedPathRaised, Refused, run_cached, run_uncached, seeded

_Cast = tuple[torch.dtype, torch.dtype]
_RANDOM = ("dropout", "rand", "bernoulli", "multinomial", "normal", "poisson", "exponential")


def locate_by_law(factory: Factory, case: Case, law: str, precision: bool) -> Location | None:
    """Locates a divergence by `law` on `case`; `precision` says that it is one of lost precision.
    None where nothing is found, and for laws that have no line to name."""
    if precision:
        return locate_cast(factory, case)
    if law == "repeatability":
        return locate_repetition(factory, case)
    if law in ("isolation", "causality"):
        with seeded(case.seed):
            return locate_leak(factory.subject(case), case, law)
    return locate(factory, case, strict=True) if law == "latent" else None


def locate_cast(factory: Factory, case: Case) -> Location | None:
    """Returns the line where the cached path first rounds to a lower precision by a cast that the
    uncached path does not make; None if no operation of torch in the model's code does."""
    with seeded(case.seed):
        subject = factory.subject(case)
        recording = record_cached(subject, case)
        watched = WatchedSubject(subject)
        with record(watched) as whole:
            whole.step = 0
            run_uncached(subject, layout(case).sequences)
    shared = {cast for _, cast, _ in _casts(whole)}
    for event, cast, source in _casts(recording):
        if cast not in shared:
            same = source.shape == event.output.shape
            lost = float(abs_difference(event.output, source).max()) if same else 0.0
            seen = f"it rounds {dtype_name(cast[0])} to {dtype_name(cast[1])}"
            return locate_alone(recording, case, [event], lost, "dtype", seen)
    return None


def _casts(recording: Recording) -> Iterator[tuple[Event, _Cast, Tensor]]:
    """Yields the operations whose result is coarser than what it was made from, with both dtypes
    and the finer operand."""
    for event in recording.events:
        if not event.output.is_floating_point() or not event.places or event.operation == OUTPUT:
            continue
        for index in event.inputs:
            source = recording.events[index].output
            if source.is_floating_point() and is_coarser(event.output.dtype, source.dtype):
                yield event, (source.dtype, event.output.dtype), source


def locate_repetition(factory: Factory, case: Case) -> Location | None:
    """Returns the first line that computes something else when `case` is run again, after another
    case; None if none does."""
    with seeded(case.seed):
        subject = factory.subject(case)
        rows = layout(case).sequences
        for again in (lambda: record_cached(subject, case), lambda: record_whole(subject, rows)):
            found = _first_change(subject, case, again)
            if found is not None:
                return found
    return None


def _first_change(subject: Subject, case: Case, run: Callable[[], Recording]) -> Location | None:
    """Returns the first operation that has another result in a second `run`."""
    one = run()
    vocabulary = subject.vocab_size
    other = tuple(tuple((token + 1) % vocabulary for token in row) for row in case.tokens)
    with suppress(CachedPathRaised, Refused):
        run_cached(subject, replace(case, tokens=other))
    for event, again in zip(one.events, run().events, strict=False):
        mine, theirs = event.output, again.output
        if mine.shape != theirs.shape or event.operation != again.operation:
            return locate_alone(one, case, [event], torch.inf, "not repeatable", "")
        apart = float(abs_difference(mine, theirs).max()) if mine.numel() else 0.0
        if apart and event.places:
            drawn = any(word in event.operation for word in _RANDOM)
            seen = "it is drawn at random" if drawn else "an earlier call has changed it"
            return locate_alone(one, case, [event], apart, "not repeatable", seen)
    return None
