"""The states that a subject reports by itself, compared site by site in the fixed order.

Both paths of a subject that offers `trace` report their states site by site. The uncached run
holds every position of a site; a step of the cached run holds the new positions, or, at the
cache, all positions so far. States are aligned by absolute position and compared with the
tolerance of the logits, each against the scale of its own row.
"""

from __future__ import annotations

import functools
import linecache
import sys
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from types import CodeType, FrameType
from typing import Any

import torch
from torch import Tensor

from kvfuzz.case.case import Case, Step
from kvfuzz.case.layout import Layout, layout, numbers_of, places_of, text_mask
from kvfuzz.localize.location import Divergence, Line, SiteDifference, short_path
from kvfuzz.localize.lookalikes import WrongState
from kvfuzz.oracle.compare import Comparison, compare
from kvfuzz.oracle.noise import Unmeasurable, states_noise
from kvfuzz.oracle.tolerance import Tolerance, constant, measured
from kvfuzz.subjects.dtypes import coarsest, compute_dtype
from kvfuzz.subjects.protocol import Subject
from kvfuzz.subjects.run import CachedPathRaised, Refused, run_cached, run_uncached
from kvfuzz.subjects.trace import Site


@dataclass(slots=True)
class Trace:
    """The states of one run by site: tensors [batch, time, features], compared one by one, since
    an index and a record have different scales; and the line that reported them."""

    states: dict[Site, list[Tensor]] = field(default_factory=dict)
    sources: dict[Site, Line] = field(default_factory=dict)

    def __call__(self, kind: str, layer: int | None, *states: Tensor) -> None:
        self.add(kind, layer, states, sys._getframe(1))

    def add(self, kind: str, layer: int | None, states: Sequence[Tensor], frame: FrameType) -> None:
        site = Site(kind, layer)
        batch = next(state.shape[0] for state in states if state.dim() > 1)
        self.states[site] = [_flat(state, batch).clone() for state in states]
        self.sources[site] = _line(frame.f_code, frame.f_lineno)


@dataclass(frozen=True)
class ComparedSite:
    """A site of one step in both runs, at `places`. `found` and `right` are its parts, the latter
    whole, [batch or sequences, time, features], with the `tolerances` of the latter. They are
    compared when it is asked for."""

    step: Step
    site: Site
    source: Line
    places: SlotPositions
    found: list[Tensor]
    right: list[Tensor]
    tolerances: list[Tolerance]
    missing: str | None

    @functools.cached_property
    def parts(self) -> list[Comparison]:
        """Each part compared, [batch, time]."""
        at = self.places
        return [
            compare(found[:, : at.count], at.of(right), tolerance.at(at.of), at.text)
            for found, right, tolerance in zip(self.found, self.right, self.tolerances, strict=True)
        ]

    @functools.cached_property
    def excess(self) -> Tensor:
        """How far the parts differ, in multiples of what is allowed, [parts, batch, time]."""
        return torch.stack([part.excess for part in self.parts])

    @property
    def differs(self) -> bool:
        """Whether a part does by more than is allowed, or positions are missing."""
        return self.missing is not None or bool((self.excess > 1).any())


def can_trace(subject: Any) -> bool:
    """Whether `subject` reports its states."""
    return callable(getattr(subject, "trace", None))


def first_state(subject: Subject, case: Case) -> Divergence | None:
    """The first state of the cached path that differs, by step and then in the order of
    `sites.KINDS`; None if none does, or if the subject has no `trace`."""
    return next(filter(None, map(find_divergence, compare_sites(subject, case))), None)


def difference_map(states: Iterable[ComparedSite]) -> list[SiteDifference]:
    """The excess of every site at every position of every step, for a picture. Padding has none."""
    cells = []
    for compared in states:
        step, site = compared.step.index, str(compared.site)
        largest: dict[int, float] = defaultdict(float)
        for row, values in enumerate(compared.excess.amax(dim=0).tolist()):
            for offset, value in enumerate(values):
                place = compared.places.position_of(row, offset)
                largest[place] = max(largest[place], value)
        if compared.missing:
            largest[compared.places.start + compared.excess.shape[-1]] = torch.inf
        cells += [SiteDifference(step, site, place, largest[place]) for place in sorted(largest)]
    return cells


@dataclass(frozen=True, slots=True)
class ExpectedStates:
    """The states of the uncached path at every position of a case, and how far from them another
    honest path may be."""

    states: dict[Site, list[Tensor]]
    tolerances: dict[Site, list[Tolerance]]


def expected_states(subject: Subject, case: Case) -> ExpectedStates:
    """What the uncached path of `subject`, which reports its states, goes through on `case`."""
    whole = _whole(subject, case)
    return ExpectedStates(whole.states, _tolerances(subject, case, whole))


def compare_sites(
    subject: Subject, case: Case, expected: ExpectedStates | None = None
) -> Iterator[ComparedSite]:
    """Every site of every step of the cached run beside the same positions uncached, which are
    `expected` if that is known already."""
    if not can_trace(subject):
        return
    expected = expected or expected_states(subject, case)
    windows = getattr(subject, "windows", None)
    for step, trace in _traced_steps(subject, case):
        device = next(iter(trace.states.values()))[0].device
        places = _slot_positions(step, layout(case), device)
        for site in sorted(trace.states, key=lambda site: site.order):
            in_cache = site.kind == "cache"
            start = 0 if in_cache else len(step.before[0])
            due = len(step.after[0]) - start
            held = min(state.shape[1] for state in trace.states[site])
            window = (
                windows[site.layer] if in_cache and windows and site.layer is not None else None
            )
            if window is not None and min(window, due) <= held < due:
                start, due = start + due - held, held  # what a window has passed may be gone
            missing = f"holds {held} of the {due} positions due" if held < due else None
            missing = f"holds {held} positions, {due} are due" if held > due else missing
            yield ComparedSite(
                step,
                site,
                trace.sources[site],
                places.between(start, start + min(held, due)),
                trace.states[site],
                expected.states[site],
                expected.tolerances[site],
                missing,
            )


@dataclass(frozen=True, slots=True)
class SlotPositions:
    """Which `position` of which `sequence` each slot of each row holds [batch, slots]; `text` is
    false for padding. Both are None where row i holds the positions `start`, `start` + 1, ... of
    sequence i."""

    start: int
    sequence: Tensor | None = None
    position: Tensor | None = None
    text: Tensor | None = None
    stop: int | None = None

    @property
    def count(self) -> int:
        """How many slots these are, of some of the slots."""
        assert self.stop is not None
        return self.stop - self.start

    def between(self, start: int, stop: int) -> SlotPositions:
        """Those of the slots `start` to `stop`."""
        if self.sequence is None or self.position is None or self.text is None:
            return SlotPositions(start, stop=stop)
        slots = slice(start, stop)
        return SlotPositions(
            start, self.sequence, self.position[:, slots], self.text[:, slots], stop
        )

    def of(self, values: Tensor) -> Tensor:
        """The `values` [sequences, time, ...] of these places, [batch, slots, ...]."""
        if self.sequence is None or self.position is None:
            return values[:, self.start : self.stop]
        return values[self.sequence, self.position]

    def position_of(self, row: int, offset: int) -> int:
        """The position, in the row's own tokens, of the slot number `offset` of these."""
        if self.position is None or offset >= self.position.shape[1]:
            return self.start + offset
        return int(self.position[row, offset])


def _slot_positions(step: Step, found: Layout, device: torch.device) -> SlotPositions:
    if found.plain:
        return SlotPositions(0)
    numbers = torch.tensor(numbers_of(step, found), device=device)[:, None]
    counted = places_of(step)
    position = torch.tensor([[place or 0 for place in row] for row in counted], device=device)
    text = torch.tensor(text_mask(step.after), device=device)
    return SlotPositions(0, numbers, position, text)


def _whole(subject: Subject, case: Case) -> Trace:
    """The states of one uncached run over the sequences of `case`."""
    whole = Trace()
    with subject.trace(whole):  # type: ignore[attr-defined]
        run_uncached(subject, layout(case).sequences)
    return whole


def _tolerances(subject: Subject, case: Case, whole: Trace) -> dict[Site, list[Tolerance]]:
    """How far from each state of the uncached run another honest path may be."""
    places = [(site, part) for site, states in whole.states.items() for part in range(len(states))]
    states = [whole.states[site][part] for site, part in places]

    def again() -> list[Tensor]:
        trace = _whole(subject, case)
        return [trace.states[site][part].double() for site, part in places]

    dtype = compute_dtype(states[-1].dtype, subject)
    found: dict[Site, list[Tolerance]] = {site: [] for site in whole.states}
    try:
        noises: Sequence[Tensor | None] = states_noise(subject, again, states, dtype)
    except Unmeasurable:
        noises = [None] * len(states)
    for (site, _), state, noise in zip(places, states, noises, strict=True):
        if noise is None:
            width = getattr(subject, "width", None)
            found[site].append(constant(state, width, state.dtype))
        else:
            found[site].append(measured(state, noise, coarsest(state.dtype, dtype)))
    return found


def _traced_steps(subject: Subject, case: Case) -> list[tuple[Step, Trace]]:
    """One trace for each step that feeds; up to the step that raised, if one did."""
    traces: list[tuple[Step, Trace]] = []

    def begin(step: Step) -> None:
        if step.feeds:
            traces.append((step, Trace()))

    def note(kind: str, layer: int | None, *states: Tensor) -> None:
        traces[-1][1].add(kind, layer, states, sys._getframe(1))

    with subject.trace(note), suppress(CachedPathRaised, Refused):  # type: ignore[attr-defined]
        run_cached(subject, case, begin=begin)
    return traces


def find_divergence(compared: ComparedSite) -> Divergence | None:
    """Where the site of `compared` differs first, None if it does not."""
    diverges, channel = compared.excess > 1, -1
    if bool(diverges.any()):
        offset = int(diverges.any(0).any(0).nonzero()[0])
        part, row = divmod(int(compared.excess[:, :, offset].argmax()), compared.excess.shape[1])
        comparison = compared.parts[part]
        difference = float(comparison.difference[row, offset])
        allowed = float(comparison.allowed[row, offset])
        right = compared.places.of(compared.right[part])[row, offset]
        channel = int(
            (compared.found[part][row, offset] - right).abs().nan_to_num(torch.inf).argmax()
        )
    elif compared.missing:
        offset, row, difference, allowed = compared.excess.shape[-1], 0, torch.inf, 0.0
    else:
        return None
    return Divergence(
        compared.step.index,
        row,
        compared.places.position_of(row, offset),
        compared.site,
        difference,
        allowed,
        compared.source,
        compared.missing,
        channel,
    )


def logits_differ(states: Iterable[ComparedSite]) -> bool:
    """Whether the logits of any step differ."""
    return any(one.differs for one in states if one.site.kind == "logits")


def wrong_state(
    compared: ComparedSite, states: Iterable[ComparedSite], first: Divergence
) -> WrongState:
    """The part of the first site that differs, beside what is right."""
    part = int(compared.excess.amax((1, 2)).argmax()) if compared.excess.numel() else 0
    places = compared.places
    if places.sequence is not None or not compared.excess.numel():
        return WrongState()
    count = compared.excess.shape[-1]
    others = {
        one.site.layer: one.right[part]
        for one in states
        if one.site.kind == first.site.kind
        and one.site.layer not in (None, first.site.layer)
        and part < len(one.right)
    }
    return WrongState(
        compared.found[part][:, :count],
        compared.right[part],
        tuple(range(places.start, places.start + count)),
        {number: right for number, right in others.items() if number is not None},
    )


def find_evidence(states: Iterable[ComparedSite], step: Step) -> tuple[str, ...]:
    """What differs and what agrees in the first step that diverges."""
    before = len(step.before[0])
    seen: dict[str, list[bool]] = {}
    for one in states:
        if one.step.index != step.index or not one.excess.numel():
            continue
        differs = (one.excess > 1).any(0).any(0)
        if one.site.kind == "position":
            seen.setdefault("positions", []).append(bool(differs.any()))
        elif one.site.kind == "kv":
            seen.setdefault("keys and values of the new tokens", []).append(bool(differs.any()))
        elif one.site.kind == "cache":
            old = differs[: max(0, before - one.places.start)]
            seen.setdefault("keys and values of earlier positions", []).append(bool(old.any()))
    return tuple(f"{name} {'differ' if any(v) else 'agree'}" for name, v in seen.items())


def _flat(state: Tensor, batch: int) -> Tensor:
    """[time], [batch, time], [batch, time, features] or [batch, heads, time, head_dim] as [batch,
    time, features]. Indices become float64, which holds them exactly."""
    if state.dim() == 1:
        return state.double()[None, :, None].expand(batch, -1, 1)
    if state.dim() == 2:
        return state.double()[..., None]
    if state.dim() == 4:
        return state.transpose(1, 2).flatten(2)
    return state


@functools.lru_cache(maxsize=1024)
def _line(code: CodeType, number: int) -> Line:
    """Line `number` of the file that `code` stands in."""
    text = linecache.getline(code.co_filename, number).strip()
    return Line(short_path(code.co_filename), number, text, code.co_qualname)
