"""Record what a torch model computes: each operation with its result, the module that it is in, its
line of source, and the operations that its operands came from.

Operations are seen by a torch function mode and modules by hooks, so that no code of the model
changes. What is compiled runs as it is written. What a scripted function does inside, or one under
`vmap`, is not seen: its result alone is.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.module import (
    register_module_forward_hook,
    register_module_forward_pre_hook,
)
from torch.overrides import TorchFunctionMode

from kvfuzz.location import Line
from kvfuzz.tensors import walk
from kvfuzz.tracing.modules import is_norm, names_of, unnamed
from kvfuzz.tracing.places import NOWHERE, Homes, Outer, Place, named

MOST_BYTES = 2 * 1024**3
"""States beyond this size are no longer kept: then modules alone are recorded."""

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
# What an operation gives that is no state.
_NO_STATE = {bool, int, float, str, torch.Size, torch.dtype, torch.device, torch.layout}
# What Python calls for `x[i] = y` and for `x += y` and its like.
_AUGMENTED = {"__setitem__"} | {
    f"__i{name}__"
    for name in ("add", "sub", "mul", "div", "truediv", "floordiv", "mod", "pow", "and", "or",
                 "xor", "lshift", "rshift")
}  # fmt: skip


@dataclass(slots=True)
class Event:
    """One result. `output` is a copy, made at once; `inputs` are the indices of the events that the
    operands came from (what is none of them is a weight, a constant, or was there before), and
    `taps` are the operands of an operation on two activations. `call` counts the calls of `module`
    in one run; `places` are the lines of the model's packages that it was called from, the
    innermost first; `part` numbers several results.
    """

    index: int
    step: int
    operation: str
    module: str
    call: int
    places: tuple[Place, ...]
    part: int
    output: Tensor
    inputs: tuple[int, ...] = ()
    taps: tuple[Tensor, ...] = ()
    unseen: bool = False
    """Whether an operand came from outside the recording, and is no weight."""

    @property
    def place(self) -> Place:
        return self.places[0] if self.places else NOWHERE

    @property
    def writes(self) -> bool:
        """Whether it wrote into what was there before."""
        return _is_in_place(self.operation)


@dataclass(slots=True)
class Recording:
    """The events of a run in order. `norms` are the names of the modules that normalise, `homes`
    where the model's code is. `whole` is false where operations were too many to keep, so that
    modules alone are there."""

    events: list[Event] = field(default_factory=list)
    norms: set[str] = field(default_factory=set)
    homes: Homes | None = None
    whole: bool = True
    step: int = -1
    steps: dict[int, list[Event]] = field(default_factory=dict)

    def add(self, event: Event) -> None:
        self.events.append(event)
        self.steps.setdefault(event.step, []).append(event)

    def line_of(self, event: Event, owner: str | None = None) -> Line | None:
        """The line to name for `event`. What makes positions, and masks in the module `owner` that
        holds the layers, is a helper by design."""
        mask = event.module == owner and event.output.dim() > 2
        files = self.homes.files if self.homes else ()
        return named(event.places, files, helped=mask or not event.output.is_floating_point())

    def of(self, step: int) -> list[Event]:
        """The events of one step."""
        return self.steps.get(step, [])


class Watched:
    """What is known of a subject before it runs: the names of its modules and the ids of its
    weights, and where its code is."""

    def __init__(self, subject: Any) -> None:
        model = getattr(subject, "model", subject)
        self.names = names_of(subject, model)
        self.homes = Homes(subject, model)
        self.weights = {
            id(thing) for thing in walk([subject, model], modules=True) if isinstance(thing, Tensor)
        }


@contextmanager
def recorded(
    watched: Watched, operations: bool = True, numbers: bool = False
) -> Iterator[Recording]:
    """Inside, what the modules of a subject compute is recorded, and with `operations` each
    operation in them; where `numbers` are all that is wanted without lines and operands. The caller
    counts `step` up."""
    recorder = _Recorder(watched, numbers)
    recorder.recording.whole = operations
    hooks = [
        register_module_forward_pre_hook(recorder.enter),
        register_module_forward_hook(recorder.leave, always_call=True),
    ]
    try:
        with _as_written(), recorder:
            yield recorder.recording
    finally:
        for hook in hooks:
            hook.remove()


@contextmanager
def _as_written() -> Iterator[None]:
    """Inside, what is compiled runs as it is written: a compiler would compile the recorder too."""
    stance = getattr(torch.compiler, "set_stance", None)
    if "torch._dynamo" not in sys.modules or stance is None:
        yield
        return
    with stance("force_eager"):
        yield


class _Recorder(TorchFunctionMode):
    def __init__(self, watched: Watched, numbers: bool) -> None:
        super().__init__()
        self._numbers = numbers
        self.recording = Recording(homes=watched.homes)
        self._names, self._weights, self._homes = watched.names, watched.weights, watched.homes
        self._stack: list[tuple[str, int]] = [("", 0)]
        self._calls: Counter[str] = Counter()
        self._made: dict[int, int] = {}
        self._written: dict[int, int] = {}
        self._alive: list[Tensor] = []
        self._seen: set[str] = set()
        self._outer: list[Outer] = []
        self._bytes = 0
        self._run = -1

    def enter(self, module: nn.Module, _: Any) -> None:
        """A module begins."""
        self._fresh()
        name = self._names.get(id(module)) or f"{self._stack[-1][0]}{unnamed(module)}"
        self._stack.append((name, self._calls[name]))
        self._calls[name] += 1
        if not self._numbers:
            further = self._outer[-1] if self._outer else None
            self._outer.append(self._homes.outer(sys._getframe(1), further))
        if name not in self._seen:
            self._seen.add(name)
            if is_norm(module):
                self.recording.norms.add(name)

    def leave(self, module: nn.Module, _: Any, output: Any) -> None:
        """A module ends, or has raised."""
        name, call = self._stack.pop()
        if self._outer:
            self._outer.pop()
        with torch._C.DisableTorchFunction():
            for part, tensor in enumerate(_tensors(output)):
                if tensor.is_floating_point():
                    self._note_result(module, name, call, part, tensor)
        if len(self._stack) == 1:
            self._homes.add(output)

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        result = func(*args, **kwargs) if kwargs else func(*args)
        if type(result) in _NO_STATE or (not self.recording.whole and len(self._stack) > 1):
            return result
        name = getattr(func, "__name__", None) or str(func)
        changed = _changed(name, args, kwargs)
        if changed is None and args and result is args[0] and isinstance(result, Tensor):
            # As `to` does where there is nothing to do, or as a function asked to work in place.
            if not self._has_changed(result):
                return result
            changed = result
        if changed is not None:
            results = [changed]
        elif type(result) is Tensor:
            results = [result]
        elif isinstance(result, tuple | list) and type(result) is not torch.Size:
            results = _tensors(result)
        else:
            return result
        if not results or (name == "__set__" and id(results[0]) in self._weights):
            return result  # a weight that is exchanged for its double, by kvfuzz itself
        self._fresh()
        places: tuple[Place, ...] = ()
        operands: list[Tensor] = []
        if not self._numbers:
            outer = self._outer[-1] if self._outer else None
            places = self._homes.places(sys._getframe(1), outer)
            operands = _tensors(args) + _tensors(kwargs)
        module, call = self._stack[-1]
        with torch._C.DisableTorchFunction():
            for part, tensor in enumerate(results):
                if _is_value(tensor):
                    event = self._event(name, module, call, places, part, tensor)
                    self._fill(event, operands)
                    self._note(event, tensor, changed)
        return result

    def _fresh(self) -> None:
        """Calls of a module are counted within a step."""
        if self._run != self.recording.step:
            self._run = self.recording.step
            self._calls.clear()

    def _event(
        self,
        operation: str,
        module: str,
        call: int,
        places: tuple[Place, ...],
        part: int,
        tensor: Tensor,
    ) -> Event:
        index, step = len(self.recording.events), self.recording.step
        return Event(index, step, operation, module, call, places, part, tensor)

    def _note_result(
        self, module: nn.Module, name: str, call: int, part: int, tensor: Tensor
    ) -> None:
        """Keep what `module` gives, once if it is what the last operation inside gave."""
        places = (self._homes.of(module.__class__),)
        event, known = (
            self._event(OUTPUT, name, call, places, part, tensor),
            self._producers(tensor),
        )
        if known and self.recording.events[known[0]].output.shape == tensor.shape:
            event.output, event.inputs = self.recording.events[known[0]].output, known
        else:
            self._fill(event, ())
            event.inputs = known if self.recording.whole else event.inputs
        self.recording.add(event)

    def _note(self, event: Event, tensor: Tensor, changed: Tensor | None) -> None:
        """Keep the `event` that gave `tensor`, and wrote into `changed`, if into anything."""
        self._made[id(tensor)] = event.index
        self._alive.append(tensor)  # an id stands for one object only while that lives
        if changed is not None and event.operation != "__set__" and _storage(tensor):
            self._written[_storage(tensor)] = event.index
        self.recording.add(event)

    def _fill(self, event: Event, operands: Sequence[Tensor]) -> None:
        """Copy what `event` gives and is given."""
        made: set[int] = set()
        for operand in operands:
            known = self._producers(operand)
            made.update(known)
            if not known and id(operand) not in self._weights:
                event.unseen |= not isinstance(operand, nn.Parameter)
        if self.recording.whole:
            event.inputs = tuple(sorted(made))
        else:
            # Nothing tells what a module is given: it may be all that was there before.
            event.inputs = (event.index - 1,) if event.index else ()
        event.output = _copy(event.output)
        if event.operation in TAPPED and not any(id(t) in self._weights for t in operands):
            event.taps = tuple(map(_copy, operands))
        self._bytes += sum(t.nbytes for t in (event.output, *event.taps))
        if self._bytes > MOST_BYTES:
            self.recording.whole = False

    def _producers(self, tensor: Tensor) -> tuple[int, ...]:
        """The event that made `tensor`, or what has since written into its storage, the newest
        first."""
        made = self._made.get(id(tensor), -1)
        writer = self._written.get(_storage(tensor), -1) if self._written else -1
        if writer > made:
            return (writer, made) if made >= 0 else (writer,)
        return (made,) if made >= 0 else ()

    def _has_changed(self, tensor: Tensor) -> bool:
        """Whether `tensor` holds something else than when it was noted last."""
        with torch._C.DisableTorchFunction():
            known = self._producers(tensor)
            if not known or not _is_value(tensor):
                return False
            before = self.recording.events[known[0]].output
            return before.shape == tensor.shape and not torch.equal(before, tensor)


def _changed(name: str, args: tuple[Any, ...], kwargs: Mapping[str, Any] | None) -> Tensor | None:
    """The tensor that an operation wrote into, None for one that makes its result anew."""
    target = args[0] if args and isinstance(args[0], Tensor) else None
    if kwargs and isinstance(kwargs.get("out"), Tensor):
        return kwargs["out"]  # type: ignore[no-any-return]
    if target is None or name == "__get__":
        return None
    return target if name == "__set__" or _is_in_place(name) else None


def _is_in_place(name: str) -> bool:
    """Whether an operation of that name writes into its first operand."""
    if name.endswith("__"):
        return name in _AUGMENTED
    return name.endswith("_")


def _tensors(thing: Any) -> list[Tensor]:
    """The tensors in `thing`, in order."""
    if isinstance(thing, Tensor):
        return [thing]
    if isinstance(thing, Mapping):
        thing = thing.values()
    elif not isinstance(thing, list | tuple):
        return []
    found: list[Tensor] = []
    for value in thing:
        if isinstance(value, Tensor):
            found.append(value)
        elif isinstance(value, list | tuple | Mapping):
            found += _tensors(value)
    return found


def _copy(tensor: Tensor) -> Tensor:
    return tensor.detach().clone() if tensor.requires_grad else tensor.clone()


def _is_value(tensor: Tensor) -> bool:
    """Whether `tensor` holds numbers that can be copied; inside `vmap` it does not."""
    plain = type(tensor) in (Tensor, nn.Parameter) and not tensor.is_meta and not tensor.is_sparse
    return plain and not torch._C._functorch.is_functorch_wrapped_tensor(tensor)


def _storage(tensor: Tensor) -> int:
    """What stands for the memory of `tensor`; 0 where it has none."""
    try:
        return tensor.untyped_storage().data_ptr()
    except (RuntimeError, NotImplementedError):
        return 0
