"""Find which states hold a number, among all those of one module."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from kvfuzz.localize.operations.compare_states import allowed_beside
from kvfuzz.localize.operations.events import Event


@dataclass(frozen=True)
class Numbers:
    """The floating-point outputs of `events`, one after the other: their `values` and by how much
    each of these may be `off` [n], and where each output `ends` [events]."""

    events: Sequence[Event]
    values: Tensor
    off: Tensor
    ends: Tensor

    def near(self, value: Tensor) -> list[Event]:
        """The events that hold `value` [], but for rounding; all that hold NaN besides."""
        if not self.events:
            return []
        found = ((self.values - value).abs_() > self.off).logical_not_().nonzero()[:, 0]
        owners = torch.searchsorted(self.ends, found, right=True)
        return [self.events[n] for n in sorted(set(owners.tolist()))]


def numbers_of(events: Sequence[Event]) -> Numbers:
    """Those of `events` that are floating-point."""
    inexact = [e for e in events if e.output.is_floating_point() and e.output.numel()]
    flat = [e.output.double().flatten() for e in inexact] or [torch.zeros(0)]
    sizes = torch.tensor([values.numel() for values in flat], device=flat[0].device)
    off = torch.tensor([allowed_beside(event, 0.0) for event in inexact], device=flat[0].device)
    return Numbers(inexact, torch.cat(flat), off.double().repeat_interleave(sizes), sizes.cumsum(0))
