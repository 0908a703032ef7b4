"""Compares the states that a subject reports itself, site by site in the canonical order.

Both paths of a subject that offers `trace` report their states. The uncached run reports every
position of a site at once; a step of the cached run reports the new positions, or, at the cache,
all positions so far. States are aligned by absolute position and compared within the tolerance of
the logits, each relative to the scale of its own row.

Read from the top: record both runs, compare them, describe what differs.
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
from kvfuzz.case.layout import Layout, layout, sequence_numbers, slot_positions, text_mask
from kvfuzz.case.schedule import Tree
from kvfuzz.localize.location import Divergence, Line, SiteDifference, short_path
from kvfuzz.localize.lookalikes import WrongState
from kvfuzz.oracle.compare import Comparison, compare
from kvfuzz.oracle.noise import Unmeasurable, states_noise
from kvfuzz.oracle.tolerance import Tolerance, constant, measured
from kvfuzz.subjects.dtypes import coarsest, compute_dtype
from kvfuzz.subjects.protocol import Subject
from kvfuzz.subjects.run import CachedPathRaised, Refused, run_cached, run_uncached
from kvfuzz.subjects.trace import Site


def can_trace(subject: Any) -> bool:
    """Whether `subject` reports its states."""
    return callable(getattr(subject, "trace", None))


# Record both runs.


@dataclass(slots=True)
class Trace:
    """The states of one run by site, and the line that reported each. Every state of a site is a
    tensor [batch, time, features] of its own: an index and a record have different scales."""

    states: dict[Site, list[Tensor]] = field(default_factory=dict)
    sources: dict[Site, Line] = field(default_factory=dict)

    def __call__(self, kind: str, layer: int | None, *states: Tensor) -> None:
        self.add(kind, layer, states, sys._getframe(1))

    def add(self, kind: str, layer: int | None, states: Sequence[Tensor], frame: FrameType) -> None:
        site = Site(kind, layer)
        batch = next(state.shape[0] for state in states if state.dim() > 1)
        # A copy: the decoder may write into its cache later.
        self.states[site] = [_flatten(state, batch).clone() for state in states]
        self.sources[site] = _line(frame.f_code, frame.f_lineno)


def _flatten(state: Tensor, batch: int) -> Tensor:
    """Returns [time], [batch, time], [batch, time, features] or [batch, heads, time, head_dim] as
    [batch, time, features]. Indices become float64, which holds them exactly."""
    if state.dim() == 1:
        return state.double()[None, :, None].expand(batch, -1, 1)
    if state.dim() == 2:
        return state.double()[..., None]
    if state.dim() == 4:
        return state.transpose(1, 2).flatten(2)
    return state


@functools.lru_cache(maxsize=1024)
def _line(code: CodeType, number: int) -> Line:
    """Returns line `number` of the file of `code`."""
    text = linecache.getline(code.co_filename, number).strip()
    return Line(short_path(code.co_filename), number, text, code.co_qualname)


@dataclass(frozen=True, slots=True)
class ExpectedStates:
    """The states of the uncached path at every position of a case, and their tolerances."""

    states: dict[Site, list[Tensor]]
    tolerances: dict[Site, list[Tolerance]]


def expected_states(subject: Subject, case: Case) -> ExpectedStates:
    """Returns the states that the uncached path of `subject`, which reports them, has on `case`."""
    whole = _trace_uncached(subject, case)
    return ExpectedStates(whole.states, _tolerances(subject, case, whole))


def _trace_uncached(subject: Subject, case: Case) -> Trace:
    """Returns the states of one uncached run over the sequences of `case`."""
    whole = Trace()
    with subject.trace(whole):  # type: ignore[attr-defined]
        run_uncached(subject, layout(case).sequences)
    return whole


def _tolerances(subject: Subject, case: Case, whole: Trace) -> dict[Site, list[Tolerance]]:
    """Returns the tolerance of each state of the uncached run, from its measured noise; a constant
    where that cannot be measured."""
    parts = [(site, part) for site, states in whole.states.items() for part in range(len(states))]
    states = [whole.states[site][part] for site, part in parts]

    def rerun() -> list[Tensor]:
        trace = _trace_uncached(subject, case)
        return [trace.states[site][part].double() for site, part in parts]

    dtype = compute_dtype(states[-1].dtype, subject)
    found: dict[Site, list[Tolerance]] = {site: [] for site in whole.states}
    try:
        noises: Sequence[Tensor | None] = states_noise(subject, rerun, states, dtype)
    except Unmeasurable:
        noises = [None] * len(states)
    for (site, _), state, noise in zip(parts, states, noises, strict=True):
        if noise is None:
            width = getattr(subject, "width", None)
            found[site].append(constant(state, width, state.dtype))
        else:
            found[site].append(measured(state, noise, coarsest(state.dtype, dtype)))
    return found


def _trace_steps(subject: Subject, case: Case) -> list[tuple[Step, Trace]]:
    """Returns one trace for each step that feeds tokens, up to the step that raised, if one did."""
    traces: list[tuple[Step, Trace]] = []

    def begin(step: Step) -> None:
        if step.feeds:
            traces.append((step, Trace()))

    def note(kind: str, layer: int | None, *states: Tensor) -> None:
        traces[-1][1].add(kind, layer, states, sys._getframe(1))

    with subject.trace(note), suppress(CachedPathRaised, Refused):  # type: ignore[attr-defined]
        run_cached(subject, case, begin=begin)
    return traces


# Compare them.


@dataclass(frozen=True, slots=True)
class SlotPositions:
    """Which `position` of which `sequence` each slot of each row holds [batch, slots]; `text` is
    false for padding. All three are None where row i holds the positions `start`, `start` + 1, ...
    of sequence i. `stop` is the slot after the last, where these are some of the slots."""

    start: int
    sequence: Tensor | None = None
    position: Tensor | None = None
    text: Tensor | None = None
    stop: int | None = None

    @property
    def count(self) -> int:
        """The number of slots between `start` and `stop`."""
        assert self.stop is not None
        return self.stop - self.start

    def between(self, start: int, stop: int) -> SlotPositions:
        """Returns those of the slots `start` to `stop`."""
        if self.sequence is None or self.position is None or self.text is None:
            return SlotPositions(start, stop=stop)
        part = slice(start, stop)
        return SlotPositions(start, self.sequence, self.position[:, part], self.text[:, part], stop)

    def of(self, values: Tensor) -> Tensor:
        """Returns the `values` [sequences, time, ...] at these positions, [batch, slots, ...]."""
        if self.sequence is None or self.position is None:
            return values[:, self.start : self.stop]
        return values[self.sequence, self.position]

    def position_of(self, row: int, offset: int) -> int:
        """Returns the position, in the row's own tokens, of the slot number `offset` of these."""
        if self.position is None or offset >= self.position.shape[1]:
            return self.start + offset
        return int(self.position[row, offset])


def _slot_positions(step: Step, found: Layout, device: torch.device) -> SlotPositions:
    if found.plain:
        return SlotPositions(0)
    numbers = torch.tensor(sequence_numbers(step, found), device=device)[:, None]
    positions = [[position or 0 for position in row] for row in slot_positions(step)]
    text = torch.tensor(text_mask(step.after), device=device)
    return SlotPositions(0, numbers, torch.tensor(positions, device=device), text)


@dataclass(frozen=True)
class ComparedSite:
    """A site of one step in both runs, at the positions of `places`.

    `found` are its states in the cached run; `right` are the same of the uncached run at all
    positions, [batch or sequences, time, features], with their `tolerances`. `missing` says how the
    cached run holds too few or too many positions. They are compared on first use.
    """

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
        """Each state compared, [batch, time]."""
        at = self.places
        return [
            compare(found[:, : at.count], at.of(right), tolerance.at(at.of), at.text)
            for found, right, tolerance in zip(self.found, self.right, self.tolerances, strict=True)
        ]

    @functools.cached_property
    def excess(self) -> Tensor:
        """Difference / allowed, [parts, batch, time]."""
        return torch.stack([part.excess for part in self.parts])

    @property
    def differs(self) -> bool:
        """Whether a state differs by more than is allowed, or positions are missing."""
        return self.missing is not None or bool((self.excess > 1).any())


def compare_sites(
    subject: Subject, case: Case, expected: ExpectedStates | None = None
) -> Iterator[ComparedSite]:
    """Yields every site of every step of the cached run, compared with the uncached run; `expected`
    are the latter's states, if they are known already."""
    if not can_trace(subject):
        return
    expected = expected or expected_states(subject, case)
    windows = getattr(subject, "windows", None)
    for step, trace in _trace_steps(subject, case):
        if not trace.states:
            continue  # the call was refused
        device = next(iter(trace.states.values()))[0].device
        places = _slot_positions(step, layout(case), device)
        for site in sorted(trace.states, key=lambda site: site.order):
            in_cache = site.kind == "cache"
            if in_cache and isinstance(step.operation, Tree):
                continue  # the cache holds candidates, too, until some are accepted
            keep = case.keep if site.kind == "logits" else None
            start, due = _range_due(step, in_cache, keep)
            held = min(state.shape[1] for state in trace.states[site])
            window = (
                windows[site.layer] if in_cache and windows and site.layer is not None else None
            )
            if window is not None and min(window, due) <= held < due:
                # The layer may drop what has left its window, so only the last `held` are due.
                start, due = start + due - held, held
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


def _range_due(step: Step, in_cache: bool, keep: int | None) -> tuple[int, int]:
    """Returns the first slot that a state of `step` should hold, and how many: all of the cache, or
    the new ones, of which the last `keep` if that is not 0 or None."""
    start = 0 if in_cache else len(step.before[0])
    due = len(step.after[0]) - start
    return (start + max(0, due - keep), min(due, keep)) if keep else (start, due)


# Describe what differs.


def first_state(subject: Subject, case: Case) -> Divergence | None:
    """Returns the first state of the cached path that differs, by step and then in the order of
    `trace.KINDS`; None if none does, or if the subject has no `trace`."""
    return next(filter(None, map(find_divergence, compare_sites(subject, case))), None)


def find_divergence(compared: ComparedSite) -> Divergence | None:
    """Returns where the site of `compared` differs first, None if it does not."""
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


def logits_differ(sites: Iterable[ComparedSite]) -> bool:
    """Whether the logits of any step differ."""
    return any(one.differs for one in sites if one.site.kind == "logits")


def difference_map(sites: Iterable[ComparedSite]) -> list[SiteDifference]:
    """Returns the excess of every site at every position of every step; padding has none."""
    cells = []
    for compared in sites:
        step, site = compared.step.index, str(compared.site)
        largest: dict[int, float] = defaultdict(float)
        for row, values in enumerate(compared.excess.amax(dim=0).tolist()):
            for offset, value in enumerate(values):
                position = compared.places.position_of(row, offset)
                largest[position] = max(largest[position], value)
        if compared.missing:
            largest[compared.places.start + compared.excess.shape[-1]] = torch.inf
        cells += [SiteDifference(step, site, at, largest[at]) for at in sorted(largest)]
    return cells


def wrong_state(
    compared: ComparedSite, sites: Iterable[ComparedSite], first: Divergence
) -> WrongState:
    """Returns the state of the first divergence that differs most, with the right one; empty where
    rows are padded or nothing was compared."""
    part = int(compared.excess.amax((1, 2)).argmax()) if compared.excess.numel() else 0
    places = compared.places
    if places.sequence is not None or not compared.excess.numel():
        return WrongState()
    count = compared.excess.shape[-1]
    others = {
        one.site.layer: one.right[part]
        for one in sites
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


def find_evidence(sites: Iterable[ComparedSite], step: Step) -> tuple[str, ...]:
    """Says of the positions, and of the keys and values of new and of earlier tokens, whether they
    differ or agree in `step`, the first that diverges."""
    before = len(step.before[0])
    seen: dict[str, list[bool]] = {}
    for one in sites:
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
