"""What is known of a run that was recorded: each result, by what and where it was made."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from torch import Tensor

from kvfuzz.localize.location import Line
from kvfuzz.localize.operations.difference import scale_of
from kvfuzz.localize.operations.source_lines import NOWHERE, Homes, Place, named
from kvfuzz.localize.operations.torch_ops import is_in_place

OUTPUT = "output"
"""The operation of an event that is a module's result."""

ATTENDING = ("scaled_dot_product_attention", "softmax")
"""The operation that attention is known by."""

# Operations on two activations: what they are given is kept as well, since attention is among them.
TAPPED = {
    "scaled_dot_product_attention",
    "matmul",
    "__matmul__",
    "bmm",
    "baddbmm",
    "einsum",
}


@dataclass(slots=True)
class Event:
    """One result. `output` is a copy, made at once; `inputs` are the indices of the events that the
    operands came from (what is none of them is a weight, a constant, or was there before), and
    `taps` are the operands of an operation on two activations. `places` are the lines of the
    model's packages that it was called from, the innermost first; `part` numbers several results.
    """

    index: int
    step: int
    operation: str
    module: str
    places: tuple[Place, ...]
    part: int
    output: Tensor
    inputs: tuple[int, ...] = ()
    taps: tuple[Tensor, ...] = ()
    unseen: bool = False
    """Whether an operand came from outside the recording, and is no weight."""
    same: Event | None = None
    """The operation whose output it is as well, of a module's result."""
    _scale: float | None = None

    @property
    def scale(self) -> float:
        """How large the numbers of its output are; 0 for integers."""
        if self.same is not None:
            return self.same.scale
        if self._scale is None:
            floating = self.output.is_floating_point()
            self._scale = scale_of(self.output) if floating else 0.0
        return self._scale

    @property
    def place(self) -> Place:
        return self.places[0] if self.places else NOWHERE

    @property
    def writes(self) -> bool:
        """Whether it wrote into what was there before."""
        return is_in_place(self.operation)


@dataclass(slots=True)
class Recording:
    """The events of a run in order. `norms` are the names of the modules that normalise, `blocks`
    of those that are layers without a number, `homes` where the model's code is. `whole` is false
    where operations were too many to keep, so that modules alone are there."""

    events: list[Event] = field(default_factory=list)
    norms: set[str] = field(default_factory=set)
    blocks: Mapping[str, int] = field(default_factory=dict)
    homes: Homes | None = None
    whole: bool = True
    step: int = -1
    steps: dict[int, list[Event]] = field(default_factory=dict)

    def new(
        self, operation: str, module: str, places: tuple[Place, ...], part: int, output: Tensor
    ) -> Event:
        """A further event, of this step."""
        event = Event(len(self.events), self.step, operation, module, places, part, output)
        self.events.append(event)
        self.steps.setdefault(self.step, []).append(event)
        return event

    def line_of(self, event: Event, owner: str | None = None) -> Line | None:
        """The line to name for `event`. What makes positions, and masks in the module `owner` that
        holds the layers, is a helper by design."""
        mask = event.module == owner and event.output.dim() > 2
        files = self.homes.files if self.homes else ()
        return named(event.places, files, helped=mask or not event.output.is_floating_point())

    def of(self, step: int) -> list[Event]:
        """The events of one step."""
        return self.steps.get(step, [])
