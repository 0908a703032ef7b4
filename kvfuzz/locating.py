"""From "the logits differ" to the first state that differs, in the fixed order.

Both paths of a subject that offers `trace` report their states site by site. The uncached run
holds every position of a site; a step of the cached run holds the new positions, or, at the
cache, all positions so far. States are aligned by absolute position and compared with the
tolerance of the logits, each against the scale of its own row.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from types import FrameType
from typing import Any

import torch
from torch import Tensor

from kvfuzz.case import Case, Step
from kvfuzz.compare import Comparison, compare
from kvfuzz.layout import Layout, layout, numbers_of, places_of, text_mask
from kvfuzz.noise import Unmeasurable, states_noise
from kvfuzz.run import CachedPathRaised, Refused, run_cached, run_uncached
from kvfuzz.sites import Site
from kvfuzz.subject import Factory, Subject
from kvfuzz.tolerance import Tolerance, coarsest, compute_dtype, constant, measured


@dataclass(frozen=True, slots=True)
class Divergence:
    """A state that differs: at `site`, in `step` (from 0), at `position` of the own tokens of
    `row`.

    `missing` tells that the cached run holds fewer or more positions there than it should: then
    `difference` is inf. `source` is the line, `file:line`, where the cached path reported it.
    """

    step: int
    row: int
    position: int
    site: Site
    difference: float
    allowed: float
    source: str
    missing: str | None = None

    @property
    def look_first_at(self) -> str:
        """What to inspect first, for a person."""
        return _ADVICE[self.site.kind].format(token=ordinal(self.position), layer=_layer(self.site))

    def to_json(self) -> dict[str, Any]:
        return {**asdict(self), "site": str(self.site), "look_first_at": self.look_first_at}


@dataclass(frozen=True, slots=True)
class SiteDifference:
    """One cell of the map of differences: the largest excess of a site at a position."""

    step: int
    site: str
    position: int
    excess: float


@dataclass(slots=True)
class Trace:
    """The states of one run by site: tensors [batch, time, features], compared one by one, since
    an index and a record have different scales; and the line that reported them."""

    states: dict[Site, list[Tensor]] = field(default_factory=dict)
    sources: dict[Site, str] = field(default_factory=dict)

    def __call__(self, kind: str, layer: int | None, *states: Tensor) -> None:
        self.add(kind, layer, states, sys._getframe(1))

    def add(self, kind: str, layer: int | None, states: Sequence[Tensor], frame: FrameType) -> None:
        site = Site(kind, layer)
        batch = next(state.shape[0] for state in states if state.dim() > 1)
        self.states[site] = [_flat(state, batch).clone() for state in states]
        self.sources[site] = f"{_short(frame.f_code.co_filename)}:{frame.f_lineno}"


@dataclass(frozen=True, slots=True)
class _Compared:
    """A site of one step in both runs, at `places`: `excess` is [parts, batch, time]."""

    step: Step
    site: Site
    source: str
    places: _Places
    parts: list[Comparison]
    excess: Tensor
    missing: str | None


def can_trace(subject: Any) -> bool:
    """Whether `subject` reports its states."""
    return callable(getattr(subject, "trace", None))


def locate(subject: Subject, case: Case) -> Divergence | None:
    """The first state of the cached path that differs, by step and then in the order of
    `sites.KINDS`; None if none does, or if the subject has no `trace`."""
    return next(filter(None, map(_first, _compared(subject, case))), None)


def locate_precisely(factory: Factory, case: Case) -> Divergence | None:
    """`locate`, in float64 where the factory offers it, since a small fault in a state hides
    below the rounding of float32; in the case's own dtype where float64 shows nothing."""
    for dtype in dict.fromkeys(("float64", case.dtype)):
        if dtype in factory.dtypes or dtype == case.dtype:
            case_in = replace(case, dtype=dtype)
            divergence = locate(factory.subject(case_in), case_in)
            if divergence is not None:
                return divergence
    return None


def difference_map(subject: Subject, case: Case) -> list[SiteDifference]:
    """The excess of every site at every position of every step, for a picture."""
    cells = []
    for compared in _compared(subject, case):
        step, site = compared.step.index, str(compared.site)
        excess = compared.excess.amax(dim=(0, 1)).tolist() if compared.excess.numel() else []
        start = compared.places.start
        cells += [
            SiteDifference(step, site, start + offset, value) for offset, value in enumerate(excess)
        ]
        if compared.missing:
            cells.append(SiteDifference(step, site, start + len(excess), torch.inf))
    return cells


_ORDINALS = (
    "first",
    "second",
    "third",
    "fourth",
    "fifth",
    "sixth",
    "seventh",
    "eighth",
    "ninth",
    "tenth",
)


def ordinal(position: int) -> str:
    """`first`, `second`, ... `tenth`, then `11th` for the token at `position` (from 0)."""
    if position < len(_ORDINALS):
        return _ORDINALS[position]
    number = position + 1
    endings = {1: "st", 2: "nd", 3: "rd"}
    ending = "th" if number % 100 in (11, 12, 13) else endings.get(number % 10, "th")
    return f"{number}{ending}"


_ADVICE = {
    "position": "the position index of the {token} token",
    "norm": "the normalisation before attention in {layer}, at the {token} token",
    "kv": "the query, key and value projections of {layer} (and their rotation), at the {token} "
    "token",
    "cache": "what {layer} appends to its cache and reads back: the slot, the layer index, the "
    "number of entries (at the {token} token)",
    "attention": "the mask, the window and the order of keys in {layer}, at the {token} token",
    "residual": "the residual connection around attention in {layer}, at the {token} token",
    "mlp_norm": "the normalisation before the MLP in {layer}, at the {token} token",
    "mlp": "the MLP of {layer}, at the {token} token",
    "mlp_residual": "the residual connection around the MLP in {layer}, at the {token} token",
    "final_norm": "the final normalisation, at the {token} token",
    "logits": "the readout, at the {token} token",
}


def _compared(subject: Subject, case: Case) -> Iterator[_Compared]:
    """Every site of every step of the cached run beside the same positions uncached."""
    if not can_trace(subject):
        return
    whole = _whole(subject, case)
    tolerances = _tolerances(subject, case, whole)
    windows = getattr(subject, "windows", None)
    for step, trace in _traced_steps(subject, case):
        device = next(iter(trace.states.values()))[0].device
        places = _places(step, layout(case), device)
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
            both = min(held, due)
            at = places.between(start, start + both)
            parts = [
                compare(actual[:, :both], at.of(expected), tolerance.at(at.of), at.text)
                for actual, expected, tolerance in zip(
                    trace.states[site], whole.states[site], tolerances[site], strict=True
                )
            ]
            excess = torch.stack([part.excess for part in parts])  # [parts, batch, time]
            missing = f"holds {held} of the {due} positions due" if held < due else None
            missing = f"holds {held} positions, {due} are due" if held > due else missing
            yield _Compared(step, site, trace.sources[site], at, parts, excess, missing)


@dataclass(frozen=True, slots=True)
class _Places:
    """Which `position` of which `sequence` each slot of each row holds [batch, slots]; `text` is
    false for padding. Both are None where row i holds the positions `start`, `start` + 1, ... of
    sequence i."""

    start: int
    sequence: Tensor | None = None
    position: Tensor | None = None
    text: Tensor | None = None
    stop: int | None = None

    def between(self, start: int, stop: int) -> _Places:
        """Those of the slots `start` to `stop`."""
        if self.sequence is None or self.position is None or self.text is None:
            return _Places(start, stop=stop)
        slots = slice(start, stop)
        return _Places(start, self.sequence, self.position[:, slots], self.text[:, slots], stop)

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


def _places(step: Step, found: Layout, device: torch.device) -> _Places:
    if found.plain:
        return _Places(0)
    numbers = torch.tensor(numbers_of(step, found), device=device)[:, None]
    counted = places_of(step)
    position = torch.tensor([[place or 0 for place in row] for row in counted], device=device)
    text = torch.tensor(text_mask(step.after), device=device)
    return _Places(0, numbers, position, text)


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


def _first(compared: _Compared) -> Divergence | None:
    diverges = compared.excess > 1
    if bool(diverges.any()):
        offset = int(diverges.any(0).any(0).nonzero()[0])
        part, row = divmod(int(compared.excess[:, :, offset].argmax()), compared.excess.shape[1])
        comparison = compared.parts[part]
        difference = float(comparison.difference[row, offset])
        allowed = float(comparison.allowed[row, offset])
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
    )


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


def _layer(site: Site) -> str:
    return "" if site.layer is None else f"layer {site.layer + 1}"


def _short(filename: str) -> str:
    """`filename` from its package's folder on, or as it is."""
    path = Path(filename)
    root = path.parent
    while (root / "__init__.py").exists():
        root = root.parent
    return str(path.relative_to(root)) if root != path.parent else path.name
