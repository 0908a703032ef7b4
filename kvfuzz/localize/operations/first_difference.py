"""Describes where a traced case goes wrong: the first state that differs, its module and its line,
and the map of differences."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence

from kvfuzz.case.layout import slot_positions
from kvfuzz.localize.location import Divergence, Line, SiteDifference
from kvfuzz.localize.operations.blame import (
    find_culprits,
    find_first_difference,
    find_first_difference_after,
    find_last_difference,
)
from kvfuzz.localize.operations.call_sites import find_faulty_call
from kvfuzz.localize.operations.candidates import find_candidates, find_stale
from kvfuzz.localize.operations.compare_states import ComparedEvent, find_worst
from kvfuzz.localize.operations.difference import ratio
from kvfuzz.localize.operations.events import OUTPUT, Event, find_logits
from kvfuzz.localize.operations.evicted import find_eviction
from kvfuzz.localize.operations.misread import find_left_out, find_misread, is_in_deeper_block
from kvfuzz.localize.operations.sites import Sites, owner_of
from kvfuzz.localize.operations.source_lines import SourcePlace, forward_line, line_at
from kvfuzz.localize.operations.traced_case import TracedCase
from kvfuzz.localize.operations.uninitialised_read import find_uninitialised_read
from kvfuzz.subjects.trace import Site


def find_first(
    traced: TracedCase, step: int, latent: bool = False, operation: int | None = None
) -> tuple[Divergence, ComparedEvent, Event] | None:
    """Returns the first state that differs, its comparison and the operation to blame; None if no
    state differs.

    The search starts from the logits of `step`, or with `latent` from the first state of `step`
    that differs. `operation` is the number of a step whose operation is known to be wrong.
    """
    last = _first_latent(traced, step) if latent else find_last_difference(traced, step)
    first = None if last is None else find_first_difference(traced, last)
    if first is None or last is None:
        return None
    evicted = find_eviction(traced, first)
    if evicted is not None:
        return _divergence(traced, first, evicted.event), first, evicted.event
    read = find_uninitialised_read(traced, last)
    suspects = [read] if read else find_culprits(traced, first.event, last, operation)
    broken = _first_nan(traced, last, first)
    suspects = [broken, *(e for e in suspects if e is not broken)] if broken else suspects
    blamed = suspects[0]
    first = find_first_difference_after(traced, blamed, last) or first
    return _divergence(traced, first, blamed, suspects), first, blamed


def _first_nan(traced: TracedCase, last: int, first: ComparedEvent) -> Event | None:
    """Returns the operation in the step of event number `last` that made NaN from numbers, if that
    is in what the event was made from, and no state that differs came before; None otherwise."""
    events = traced.recording.events
    event = events[last]
    if not _has_nan(event) or first.event.reads_unwritten:
        return None
    while (before := next((e for n in event.inputs if _has_nan(e := events[n])), None)) is not None:
        event = before
    early = first.event.index < event.index and not _has_nan(first.event)
    return None if early or not event.places or event.reads_unwritten else event


def _has_nan(event: Event) -> bool:
    return event.output.is_floating_point() and bool(event.output.isnan().any())


def shows_logits(traced: TracedCase) -> bool:
    """Whether any operation was recorded that the logits of a step were made from."""
    logits = (find_logits(traced.recording.of(step.index)) for step in traced.steps)
    return any(one is not None and one.inputs for one in logits)


def raised_at(traced: TracedCase) -> Line | None:
    """Returns the line of the model's code that the error of the cached path came from."""
    code = traced.recording.model_code
    place = code.raised_at(traced.error) if code and traced.error else None
    return line_at(place) if place else None


def map_cells(traced: TracedCase, first: int | None) -> Iterator[SiteDifference]:
    """Yields the largest excess of every site at every position of every step that feeds tokens, up
    to the step `first` that goes wrong: of the results of modules, and of the states that the
    search has compared."""
    for step in traced.steps:
        if first is not None and step.index > first:
            break
        largest: dict[tuple[Site, int], float] = defaultdict(float)
        for one, site in _on_map(traced, step.index):
            for piece, differences in zip(one.pieces, one.differences, strict=True):
                if not piece.new and site.kind not in ("position", "kv", "cache"):
                    continue  # an axis that is as long as the cache by chance
                for position, difference in zip(piece.positions, differences, strict=False):
                    place = site, position
                    largest[place] = max(largest[place], ratio(difference, one.allowed))
        for (site, position), excess in sorted(
            largest.items(), key=lambda i: (i[0][0].order, i[0][1])
        ):
            yield SiteDifference(step.index, str(site), position, excess)


def _on_map(traced: TracedCase, step: int) -> Iterator[tuple[ComparedEvent, Site]]:
    """Yields the comparisons of a step that the map shows, with their sites."""
    if step not in traced.sizes:
        return
    sites = _sites(traced, step)
    for event in traced.recording.of(step):
        shown = event.operation == OUTPUT or traced.comparisons.was_compared(event.index)
        if event.output.is_floating_point() and shown:
            one = traced.comparisons.of(event.index)
            if one is not None:
                yield one, sites.of(event, one)


def latent_cells(traced: TracedCase) -> list[SiteDifference]:
    """Returns the sites that differ where the logits agree."""
    found = []
    for step in traced.steps:
        if not step.feeds:
            continue
        sites = _sites(traced, step.index)
        for one in _latent(traced, step.index):
            site = str(sites.of(one.event, one))
            found.append(SiteDifference(step.index, site, find_worst(one).position, one.excess))
    return found


def _latent(traced: TracedCase, step: int) -> Iterator[ComparedEvent]:
    """Yields the results of modules in `step` that differ, if they have an axis of new tokens.
    Others prove nothing: a state of slots may differ in slots that nobody reads."""
    for event in traced.recording.of(step):
        if event.operation == OUTPUT and event.output.is_floating_point():
            one = traced.comparisons.of(event.index)
            if one is not None and one.differs and one.pieces[0].new:
                yield one


def _first_latent(traced: TracedCase, step: int) -> int | None:
    return next((one.event.index for one in _latent(traced, step)), None)


def _divergence(
    traced: TracedCase, first: ComparedEvent, blamed: Event, suspects: Sequence[Event] = ()
) -> Divergence:
    worst = find_worst(first)
    step = blamed.step
    # A step that feeds nothing, like a crop, can only change the cache.
    site = Site("cache", _layer_reading(traced, blamed) if step not in traced.sizes else 0)
    if step in traced.sizes:
        site = _sites(traced, step).of(blamed, traced.comparisons.of(blamed.index))
    position = worst.position
    if position < 0:
        position = _first_new_position(traced, first.event.step, worst.row)
    recording = traced.recording
    owner = owner_of(recording.events, recording.blocks)
    line, caller, helper, candidates = _named(traced, blamed, suspects, owner)
    reference = traced.references.own(first.event.step).run.recording
    partner = reference.line_of(first.partner, owner)
    return Divergence(
        step,
        max(worst.row, 0),
        position,
        site,
        worst.difference,
        first.allowed,
        line,
        first.missing,
        channel=worst.channel,
        module=blamed.module or None,
        operation=blamed.operation,
        partner=partner if partner != line else None,
        caller=caller if line and caller and caller.function != line.function else None,
        helper=helper,
        candidates=candidates,
    )


def _named(
    traced: TracedCase, blamed: Event, suspects: Sequence[Event], owner: str
) -> tuple[Line | None, Line | None, Line | None, tuple[Line, ...]]:
    """Returns the line to name for `blamed`, the line of a forward that called it, the helper that
    was called wrongly, and the candidates."""
    line, caller = traced.recording.line_of(blamed, owner), forward_line(blamed.places)
    if line is None and (place := _place_of_readout(traced, blamed)) is not None:
        return line_at(place), None, None, ()
    left_out = find_left_out(traced, blamed)
    if left_out is not None:
        other = _line_left_out(traced, left_out, blamed.step, owner)
        if line is not None and other is not None and is_in_deeper_block(left_out, blamed):
            return line, caller, None, (line, other)  # or the condition around it is wrong
        return other, forward_line(left_out.places), None, ()
    misread = find_misread(traced, blamed)
    if misread is not None:  # the write is wrong, or what it was called with
        other, outer = traced.recording.line_of(misread, owner), forward_line(misread.places)
        lines = tuple(dict.fromkeys(filter(None, (other, outer))))
        return other, outer, None, lines if len(lines) > 1 else ()
    stale = find_stale(traced, blamed)
    if stale is not None:
        other = traced.recording.line_of(stale, owner)
        lines = tuple(dict.fromkeys(filter(None, (other, line))))
        return other, forward_line(stale.places), None, lines if len(lines) > 1 else ()
    call = find_faulty_call(traced, blamed)
    if call is not None and line is not None and line == line_at(blamed.places[0]):
        return line_at(call), caller, line, find_candidates(traced, suspects, line_at(call), owner)
    return line, caller, None, find_candidates(traced, suspects, line, owner)


def _line_left_out(traced: TracedCase, left_out: Event, step: int, owner: str) -> Line | None:
    """Returns the line that `step` has left out: the call, where it has left out the function."""
    ran = {place[2] for event in traced.recording.of(step) for place in event.places}
    place = next((n for n, place in enumerate(left_out.places) if place[2] in ran), 0)
    return line_at(left_out.places[place]) if place else traced.recording.line_of(left_out, owner)


def _place_of_readout(traced: TracedCase, logits: Event) -> SourcePlace | None:
    """Returns the outermost line of what the step of `logits` computed last: it has given other
    logits back than it computed."""
    own = [e for e in traced.recording.of(logits.step) if e.places and e.operation != OUTPUT]
    return own[-1].places[-1] if own else None


def _layer_reading(traced: TracedCase, blamed: Event) -> int:
    """Returns the first layer that reads what `blamed`, in a step that feeds nothing, has made."""
    for step in traced.steps:
        if step.index > blamed.step and step.feeds:
            into = _made_from(traced.recording.events, blamed.index, step.index)
            layers = (_sites(traced, step.index).reader_of(index) for index in sorted(into))
            return next((layer for layer in layers if layer is not None), 0)
    return 0


def _made_from(events: Sequence[Event], index: int, step: int) -> set[int]:
    """Returns the numbers of the events before `step` that were made from number `index`, and its
    own."""
    into = {index}
    for event in events[index + 1 :]:
        if event.step < step and into.intersection(event.inputs):
            into.add(event.index)
    return into


def _sites(traced: TracedCase, step: int) -> Sites:
    """Returns the sites of the states of a step that feeds tokens."""
    recording = traced.recording
    return Sites(recording.of(step), recording.norms, traced.sizes[step], recording.blocks)


def _first_new_position(traced: TracedCase, step: int, row: int) -> int:
    """Returns the first new position of `row` in `step`, for a state without positions."""
    found = next(one for one in traced.steps if one.index == step)
    positions = slot_positions(found)[max(row, 0)]
    new = [
        position for position in positions[len(positions) - found.size :] if position is not None
    ]
    return new[0] if new else 0
