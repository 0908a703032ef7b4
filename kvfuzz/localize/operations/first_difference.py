"""Where a torch model goes wrong on one case: the first state, its module, and its line."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator

from kvfuzz.case.layout import places_of
from kvfuzz.localize.location import Divergence, Line, SiteDifference
from kvfuzz.localize.operations.blame import (
    culprit,
    first_difference,
    first_made_from,
    last_difference,
)
from kvfuzz.localize.operations.compare_states import Compared, worst
from kvfuzz.localize.operations.comparisons import answer
from kvfuzz.localize.operations.difference import ratio
from kvfuzz.localize.operations.events import OUTPUT, Event
from kvfuzz.localize.operations.sites import Sites, owner_of
from kvfuzz.localize.operations.source_lines import caller, line_at
from kvfuzz.localize.operations.traced_case import Inside
from kvfuzz.subjects.trace import Site


def first_inside(
    inside: Inside, step: int, latent: bool = False
) -> tuple[Divergence, Compared, Event] | None:
    """The first state that differs of those that the logits of `step` were made from, or with
    `latent` of those that the first latent state was made from, with its comparison and the
    operation to blame; None if none does."""
    last = _first_latent(inside, step) if latent else last_difference(inside, step)
    first = None if last is None else first_difference(inside, last)
    if first is None or last is None:
        return None
    blamed = culprit(inside, first.event, last)
    first = first_made_from(inside, blamed, last) or first
    return _divergence(inside, first, blamed), first, blamed


def shows_logits(inside: Inside) -> bool:
    """Whether any operation is seen that the logits of a step were made from."""
    answers = (answer(inside.recording.of(step.index)) for step in inside.steps)
    return any(one is not None and one.inputs for one in answers)


def raised_at(inside: Inside) -> Line | None:
    """The line of the model's code that the error of the cached path came from."""
    homes = inside.recording.homes
    place = homes.raised_at(inside.error) if homes and inside.error else None
    return line_at(place) if place else None


def cells(inside: Inside, first: int | None) -> Iterator[SiteDifference]:
    """The largest excess of every site at every position of every step that feeds, up to the
    `first` that goes wrong: of the results of modules, and of what the search has compared."""
    for step in inside.steps:
        if first is not None and step.index > first:
            break
        largest: dict[tuple[Site, int], float] = defaultdict(float)
        for one, site in _on_map(inside, step.index):
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


def _on_map(inside: Inside, step: int) -> Iterator[tuple[Compared, Site]]:
    """What the map shows of a step, and where."""
    if step not in inside.frames:
        return
    sites = _sites(inside, step)
    for event in inside.recording.of(step):
        shown = event.operation == OUTPUT or inside.found.looked_at(event.index)
        if event.output.is_floating_point() and shown:
            one = inside.found.of(event.index)
            if one is not None:
                yield one, sites.of(event, one)


def latent_cells(inside: Inside) -> list[SiteDifference]:
    """The sites that differ where the logits agree. What has no axis of tokens, and what is made
    of slots (of which some hold nothing that counts), is no evidence."""
    found = []
    for step in inside.steps:
        if not step.feeds:
            continue
        sites = _sites(inside, step.index)
        for one in _latent(inside, step.index):
            site = str(sites.of(one.event, one))
            found.append(SiteDifference(step.index, site, worst(one).position, one.excess))
    return found


def _latent(inside: Inside, step: int) -> Iterator[Compared]:
    for event in inside.recording.of(step):
        if event.operation == OUTPUT and event.output.is_floating_point():
            one = inside.found.of(event.index)
            if one is not None and one.differs and one.pieces[0].new:
                yield one


def _first_latent(inside: Inside, step: int) -> int | None:
    return next((one.event.index for one in _latent(inside, step)), None)


def _divergence(inside: Inside, first: Compared, blamed: Event) -> Divergence:
    place = worst(first)
    step = blamed.step
    site = Site("cache", 0)
    if step in inside.frames:
        site = _sites(inside, step).of(blamed, inside.found.of(blamed.index))
    position = place.position
    if position < 0:
        position = _newest(inside, first.event.step, place.row)
    owner = owner_of(inside.recording.events, inside.recording.blocks)
    line, called = inside.recording.line_of(blamed, owner), caller(blamed.places)
    partner = inside.references.own(first.event.step).reference.recording.line_of(
        first.partner, owner
    )
    return Divergence(
        step,
        max(place.row, 0),
        position,
        site,
        place.difference,
        first.allowed,
        line,
        channel=place.channel,
        module=blamed.module or None,
        operation=blamed.operation,
        partner=partner if partner != line else None,
        caller=called if line and called and called.function != line.function else None,
    )


def _sites(inside: Inside, step: int) -> Sites:
    """The sites of the states of a step that feeds."""
    recording = inside.recording
    return Sites(recording.of(step), recording.norms, inside.frames[step], recording.blocks)


def _newest(inside: Inside, step: int, row: int) -> int:
    """The first new position of `row` in `step`, for a state that is not about one position."""
    found = next(one for one in inside.steps if one.index == step)
    places = places_of(found)[max(row, 0)]
    new = [place for place in places[len(places) - found.size :] if place is not None]
    return new[0] if new else 0
