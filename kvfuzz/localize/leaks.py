"""Locates what one path shows alone: a result that moves with another row or with a later token."""

from __future__ import annotations

from collections.abc import Sequence

from kvfuzz.case.case import Case
from kvfuzz.case.layout import fed_positions, slot_positions
from kvfuzz.localize.causes import advice
from kvfuzz.localize.changed_runs import find_leak
from kvfuzz.localize.location import Divergence, Location
from kvfuzz.localize.operations.align import axis_sizes
from kvfuzz.localize.operations.events import Event, Recording
from kvfuzz.localize.operations.sites import Sites, owner_of
from kvfuzz.localize.operations.source_lines import forward_line
from kvfuzz.subjects.protocol import Subject
from kvfuzz.subjects.trace import Site


def locate_leak(subject: Subject, case: Case, law: str) -> Location | None:
    """Returns the first line whose result for a token moves when another row (`law` "isolation") or
    a later token ("causality") is changed, or that lets it; None if no state shows it."""
    found = find_leak(subject, case, law)
    if found is None:
        return None
    what = "another row" if law == "isolation" else "a later token"
    seen = f"it moves with {what}"
    return locate_alone(found.recording, case, found.suspects, found.moved, "unknown", seen)


def locate_alone(
    recording: Recording,
    case: Case,
    suspects: Sequence[Event],
    difference: float,
    cause: str,
    seen: str,
) -> Location:
    """Returns the location of the first of `suspects`, which no state of the other path is compared
    with; the lines of the others are candidates. A leak through attention is one of its mask."""
    event = suspects[0]
    step = next(one for one in case.steps() if one.index == max(event.step, 0))
    position, site = 0, Site("cache", 0)
    if step.feeds:
        sizes = axis_sizes(slot_positions(step), step.size, len(step.after[0]))
        sites = Sites(recording.of(event.step), recording.norms, sizes, recording.blocks)
        position, site = fed_positions(step)[0][0], sites.of(event, None)
    owner = owner_of(recording.events, recording.blocks)
    lines = tuple(filter(None, (recording.line_of(one, owner) for one in suspects)))
    line, caller = next(iter(lines), None), forward_line(event.places)
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
        candidates=tuple(dict.fromkeys(lines)) if len(set(lines)) > 1 else (),
    )
    text = advice(cause, site, 0, position, seen)
    return Location(first, cause, text, suspect="cached" if cause == "dtype" else "unknown")
