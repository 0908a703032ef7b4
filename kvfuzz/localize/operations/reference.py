"""One run that others are compared with, and how far rounding moves its states."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import torch
from torch import Tensor

from kvfuzz.localize.operations.compare_states import noise_between
from kvfuzz.localize.operations.difference import MULTIPLE
from kvfuzz.localize.operations.events import Event, Recording
from kvfuzz.localize.operations.numbers import Numbers, numbers_of
from kvfuzz.localize.operations.pair import Key, grouped, same_in
from kvfuzz.localize.operations.record import Detail, WatchedSubject, record
from kvfuzz.oracle.noise import LEAST_STEP
from kvfuzz.subjects.dtypes import ROUNDOFF
from kvfuzz.subjects.float64 import perturbing, twin_of
from kvfuzz.subjects.protocol import Subject, cache_dtype

ROUNDED = 8.0
"""How many roundoffs of a cache that rounds on purpose a state may be off, in units of its scale: a
few layers add up, and no wrong slot comes to so little."""


@dataclass
class Reference:
    """A run over the whole rows of a step, from their first token on, by another path. `again` runs
    it with weights moved by a roundoff, for its noise, which is at least the `floor` of a cache
    that rounds on purpose."""

    recording: Recording
    logits: Tensor
    again: Callable[[], Recording | None]
    floor: float = 0.0
    _numbers: dict[str, Numbers] = field(default_factory=dict, repr=False)
    _noises: dict[int, float] = field(default_factory=dict, repr=False)

    @property
    def length(self) -> int:
        return self.logits.shape[1]

    @cached_property
    def groups(self) -> Mapping[Key, Sequence[Event]]:
        """The events by what they have in common with those of another run."""
        return grouped(self.recording.events)

    @cached_property
    def _moved(self) -> Mapping[int, Event]:
        """The same events in the run with other weights, by their index."""
        moved = self.again()
        return {} if moved is None else same_in(self.recording.events, moved.events)

    def numbers_in(self, module: str) -> Numbers:
        """The floating-point numbers that the operations of one `module` give."""
        if module not in self._numbers:
            own = [e for e in self.recording.events if e.module == module]
            self._numbers[module] = numbers_of(own)
        return self._numbers[module]

    def noise_of(self, event: Event) -> float:
        """The noise of `event`, relative to its scale."""
        event = event.same or event
        if event.index not in self._noises:
            moved = self._moved.get(event.index)
            noise = noise_between(event, moved) if moved is not None else 0.0
            self._noises[event.index] = max(noise, self.floor)
        return self._noises[event.index]


def measured(
    subject: Subject, run: Callable[[], Tensor], watched: WatchedSubject, operations: bool
) -> Reference:
    """A recorded run, whose noise can be measured."""

    def recorded_run(detail: Detail) -> tuple[Recording, Tensor]:
        with record(watched, operations, detail) as recording:
            recording.step = 0
            logits = run()
        return recording, logits

    def again() -> Recording | None:
        twin = twin_of(subject)
        if not twin.weights or not (twin.always or _in_double(twin.weights)):
            return None
        with twin.running(promoting=False), perturbing(twin.weights) as perturb:
            perturb(LEAST_STEP, 0)
            return recorded_run(Detail.NUMBERS)[0]

    rounds_to = cache_dtype(subject)
    floor = ROUNDED * ROUNDOFF[rounds_to] / MULTIPLE if rounds_to is not None else 0.0
    return Reference(*recorded_run(Detail.LINES), again, floor)


def _in_double(weights: Sequence[Tensor]) -> bool:
    return all(weight.dtype == torch.float64 for weight in weights)
