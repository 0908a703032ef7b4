"""Finds the line behind a verdict that does not compare the two paths: a cast to a lower precision,
or a run that is not the same when it is repeated."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace

import torch
from torch import Tensor

from kvfuzz.case.case import Case
from kvfuzz.case.layout import fed_positions, layout, slot_positions
from kvfuzz.localize.causes import advice
from kvfuzz.localize.changed_runs import find_leak, record_cached, record_whole
from kvfuzz.localize.locate import locate
from kvfuzz.localize.location import Divergence, Location
from kvfuzz.localize.operations.align import axis_sizes
from kvfuzz.localize.operations.difference import abs_difference
from kvfuzz.localize.operations.events import OUTPUT, Event, Recording
from kvfuzz.localize.operations.record import WatchedSubject, record
from kvfuzz.localize.operations.sites import Sites, owner_of
from kvfuzz.localize.operations.source_lines import forward_line
from kvfuzz.subjects.dtypes import dtype_name
from kvfuzz.subjects.precision import is_coarser
from kvfuzz.subjects.protocol import Factory, Subject
from kvfuzz.subjects.run import CachedPathRaised, Refused, run_cached, run_uncached, seeded
from kvfuzz.subjects.trace import Site

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
        return locate_leak(factory, case, law)
    return locate(factory, case, strict=True) if law == "latent" else None


def locate_leak(factory: Factory, case: Case, law: str) -> Location | None:
    """Returns the first line whose result for a token moves when another row (`law` "isolation") or
    a later token ("causality") is changed; None if no state shows it."""
    with seeded(case.seed):
        found = find_leak(factory.subject(case), case, law)
    if found is None:
        return None
    recording, event, apart = found
    what = "another row" if law == "isolation" else "a later token"
    return _location(recording, case, event, apart, "unknown", f"it moves with {what}")


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
            return _location(recording, case, event, lost, "dtype", seen)
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
            return _location(one, case, event, torch.inf, "not repeatable", "")
        apart = float(abs_difference(mine, theirs).max()) if mine.numel() else 0.0
        if apart and event.places:
            drawn = any(word in event.operation for word in _RANDOM)
            seen = "it is drawn at random" if drawn else "an earlier call has changed it"
            return _location(one, case, event, apart, "not repeatable", seen)
    return None


def _location(
    recording: Recording, case: Case, event: Event, difference: float, cause: str, seen: str
) -> Location:
    """Returns the location of `event`, which no state of the other path is compared with."""
    step = next(one for one in case.steps() if one.index == max(event.step, 0))
    position, site = 0, Site("cache", 0)
    if step.feeds:
        sizes = axis_sizes(slot_positions(step), step.size, len(step.after[0]))
        sites = Sites(recording.of(event.step), recording.norms, sizes, recording.blocks)
        position, site = fed_positions(step)[0][0], sites.of(event, None)
    owner = owner_of(recording.events, recording.blocks)
    line, caller = recording.line_of(event, owner), forward_line(event.places)
    first = Divergence(
        step.index,
        0,
        position,
        site,
        difference,
        0.0,
        line,
        module=event.module or None,
        operation=event.operation,
        caller=caller if line and caller and caller.function != line.function else None,
    )
    text = advice(cause, site, 0, position, seen)
    return Location(first, cause, text, suspect="cached" if cause == "dtype" else "unknown")
