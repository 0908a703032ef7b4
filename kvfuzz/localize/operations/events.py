"""Events: each result that a run computed, with the operation, the module and the source line."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from torch import Tensor

from kvfuzz.localize.location import Line
from kvfuzz.localize.operations.difference import scale_of
from kvfuzz.localize.operations.source_lines import NOWHERE, ModelCode, SourcePlace, choose_line
from kvfuzz.localize.operations.torch_ops import is_in_place

OUTPUT = "output"
"""The operation of an event that is a module's result."""

ATTENDING = ("scaled_dot_product_attention", "softmax")
"""The operations by which attention is recognised."""

# Operations on two activations. Attention is among them, so their operands are kept too: only
# these show which keys and values an attention call read.
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
    """One result. `output` is a copy, made at once, since later operations may write into it: zeros
    where nothing has been written (`kvfuzz.localize.operations.unwritten`), and the real and
    imaginary parts of complex numbers along one more axis.

    `inputs` are the indices of the events that produced the operands; weights, constants and
    tensors from before the recording have none. `taps` are the operands of an operation on two
    activations. `places` are the lines of the model's packages on the call stack, innermost first.
    `part` numbers the results of an operation that returns several.
    """

    index: int
    step: int
    operation: str
    module: str
    places: tuple[SourcePlace, ...]
    part: int
    output: Tensor
    inputs: tuple[int, ...] = ()
    taps: tuple[Tensor, ...] = ()
    unseen: bool = False
    """Whether an operand came from outside the recording and is not a weight."""
    reads_unwritten: bool = False
    """Whether it computed with memory that nothing had been written to."""
    same: Event | None = None
    """For a module's result: the operation inside that has the same output."""
    _scale: float | None = None

    @property
    def scale(self) -> float:
        """The magnitude of its output; 0 for integers."""
        if self.same is not None:
            return self.same.scale
        if self._scale is None:
            floating = self.output.is_floating_point()
            self._scale = scale_of(self.output) if floating else 0.0
        return self._scale

    @property
    def place(self) -> SourcePlace:
        return self.places[0] if self.places else NOWHERE

    @property
    def writes(self) -> bool:
        """Whether it wrote into an existing tensor."""
        return is_in_place(self.operation)


@dataclass(slots=True)
class Recording:
    """The events of a run, in order.

    `norms` are the names of the modules that normalise, `blocks` the layers of a model that does
    not number them, `model_code` the files of the model's code. `whole` is false where the
    operations took too much memory, so that only the results of modules were kept.
    """

    events: list[Event] = field(default_factory=list)
    norms: set[str] = field(default_factory=set)
    blocks: Mapping[str, int] = field(default_factory=dict)
    model_code: ModelCode | None = None
    whole: bool = True
    step: int = -1
    steps: dict[int, list[Event]] = field(default_factory=dict)

    def new(
        self,
        operation: str,
        module: str,
        places: tuple[SourcePlace, ...],
        part: int,
        output: Tensor,
    ) -> Event:
        """Adds an event to the current step and returns it."""
        event = Event(len(self.events), self.step, operation, module, places, part, output)
        self.events.append(event)
        self.steps.setdefault(self.step, []).append(event)
        return event

    def line_of(self, event: Event, owner: str | None = None) -> Line | None:
        """Returns the line to name for `event`; `owner` is the module that holds the layers.

        Models make positions, and the masks in `owner`, in helpers on purpose: there the helper's
        own line is the one to read.
        """
        mask = event.module == owner and event.output.dim() > 2
        files = self.model_code.files if self.model_code else ()
        helper = mask or not event.output.is_floating_point()
        return choose_line(event.places, files, in_helper=helper)

    def of(self, step: int) -> list[Event]:
        """Returns the events of one step."""
        return self.steps.get(step, [])


def find_logits(events: Sequence[Event]) -> Event | None:
    """Returns the logits of a call: `kvfuzz.subjects.run` clones them outside all modules."""
    copies = (e for e in reversed(events) if e.operation == "clone" and not e.module)
    return next((e for e in copies if e.output.is_floating_point()), None)
