"""Record what a torch model computes: each operation with its result, the module that it is in, its
line of source, and the operations that its operands came from.

Operations are seen by a torch function mode and modules by hooks, so that no code of the model
changes. What is compiled runs as it is written. What a scripted function does inside, or one under
`vmap`, is not seen: its result alone is.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from enum import IntEnum
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.module import (
    register_module_forward_hook,
    register_module_forward_pre_hook,
)
from torch.overrides import TorchFunctionMode

from kvfuzz.localize.operations.dataflow import Memory
from kvfuzz.localize.operations.events import OUTPUT, TAPPED, Event, Recording
from kvfuzz.localize.operations.modules import blocks_of, is_norm, modules_of, unnamed
from kvfuzz.localize.operations.source_lines import Homes, Outer, Place
from kvfuzz.localize.operations.torch_ops import (
    changed_by,
    copied,
    is_value,
    results_in,
    tensors_in,
    written_by,
)
from kvfuzz.subjects.tensors import walk

MOST_BYTES = 2 * 1024**3
"""States beyond this size are no longer kept: then modules alone are recorded."""

# What an operation gives that is no state.
_NO_STATE = {bool, int, float, str, torch.Size, torch.dtype, torch.device, torch.layout}


class Detail(IntEnum):
    """What is kept of each result: its numbers; also where it was made; also what from."""

    NUMBERS = 1
    LINES = 2
    SOURCES = 3


class WatchedSubject:
    """What is known of a subject before it runs: the names of its modules and the ids of its
    weights, and where its code is."""

    def __init__(self, subject: Any) -> None:
        model = getattr(subject, "model", subject)
        modules = modules_of(subject, model)
        self.names = {id(module): name for name, module in modules.items()}
        self.blocks = blocks_of(modules)
        self.homes = Homes(subject, model)
        self.weights = {
            id(thing) for thing in walk([subject, model], modules=True) if isinstance(thing, Tensor)
        }


@contextmanager
def record(
    watched: WatchedSubject, operations: bool = True, detail: Detail = Detail.SOURCES
) -> Iterator[Recording]:
    """Inside, what the modules of a subject compute is recorded in this `detail`, and with
    `operations` each operation in them. The caller counts `step` up."""
    recorder = _Recorder(watched, detail)
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
    def __init__(self, watched: WatchedSubject, detail: Detail) -> None:
        super().__init__()
        self._lines, self._sources = detail >= Detail.LINES, detail >= Detail.SOURCES
        self.recording = Recording(homes=watched.homes, blocks=watched.blocks)
        self._names, self._weights, self._homes = watched.names, watched.weights, watched.homes
        self._stack: list[str] = [""]
        self._memory = Memory()
        self._seen: set[str] = set()
        self._outer: list[Outer] = []
        self._bytes = 0

    def enter(self, module: nn.Module, _: Any) -> None:
        """A module begins."""
        name = self._names.get(id(module)) or f"{self._stack[-1]}{unnamed(module)}"
        self._stack.append(name)
        if self._lines:
            further = self._outer[-1] if self._outer else None
            self._outer.append(self._homes.outer(sys._getframe(1), further))
        if name not in self._seen:
            self._seen.add(name)
            if is_norm(module):
                self.recording.norms.add(name)

    def leave(self, module: nn.Module, _: Any, output: Any) -> None:
        """A module ends, or has raised."""
        name = self._stack.pop()
        if self._outer:
            self._outer.pop()
        with torch._C.DisableTorchFunction():
            for part, tensor in enumerate(tensors_in(output)):
                if tensor.is_floating_point():
                    self._note_result(module, name, part, tensor)
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
        changed = changed_by(name, args, kwargs)
        if changed is None and args and result is args[0] and isinstance(result, Tensor):
            # As `to` does where there is nothing to do, or as a function asked to work in place.
            if not self._has_changed(result):
                return result
            changed = result
        results = results_in(result) if changed is None else [written_by(name, args, changed)]
        # A weight may be exchanged for its double, by kvfuzz itself.
        if results and not (name == "__set__" and id(results[0]) in self._weights):
            outer = self._outer[-1] if self._outer else None
            places = self._homes.places(sys._getframe(1), outer) if self._lines else ()
            self._keep(name, places, results, changed, self._operands(name, args, kwargs))
        return result

    def _operands(
        self, name: str, args: tuple[Any, ...], kwargs: Mapping[str, Any] | None
    ) -> list[Tensor]:
        """The tensors that an operation was given, as far as they are wanted."""
        if not (self._sources or (self._lines and name in TAPPED)):
            return []
        return tensors_in(args) + tensors_in(kwargs) if kwargs else tensors_in(args)

    def _keep(
        self,
        name: str,
        places: tuple[Place, ...],
        results: Sequence[Tensor],
        changed: Tensor | None,
        operands: Sequence[Tensor],
    ) -> None:
        """Keep what an operation gave."""
        with torch._C.DisableTorchFunction():
            for part, tensor in enumerate(results):
                if is_value(tensor):
                    event = self.recording.new(name, self._stack[-1], places, part, tensor)
                    self._fill(event, operands)
                    self._memory.made(tensor, event.index)
                    if changed is not None and name != "__set__":
                        self._memory.written(tensor, event.index)

    def _note_result(self, module: nn.Module, name: str, part: int, tensor: Tensor) -> None:
        """Keep what `module` gives, once if it is what the last operation inside gave."""
        known, number = self._memory.producers(tensor), self._memory.last_of(tensor)
        last = None if number is None else self.recording.events[number]
        event = self.recording.new(OUTPUT, name, (self._homes.of(type(module)),), part, tensor)
        if last is not None and last.output.shape == tensor.shape:
            event.output, event.inputs, event.same = last.output, known, last.same or last
        else:
            self._fill(event, ())
            event.inputs = known if self.recording.whole else event.inputs

    def _fill(self, event: Event, operands: Sequence[Tensor]) -> None:
        """Copy what `event` gives and is given."""
        event.output = copied(event.output)
        self._bytes += event.output.nbytes
        if operands:
            made: set[int] = set()
            for operand in operands:
                known = self._memory.producers(operand)
                made.update(known)
                if not known and id(operand) not in self._weights:
                    event.unseen |= not isinstance(operand, nn.Parameter)
            event.inputs = tuple(sorted(made))
            if event.operation in TAPPED and not any(id(t) in self._weights for t in operands):
                event.taps = tuple(map(copied, operands))
                self._bytes += sum(tap.nbytes for tap in event.taps)
        if not self.recording.whole:
            # Nothing tells what a module is given: it may be all that was there before.
            event.inputs = (event.index - 1,) if event.index else ()
        if self._bytes > MOST_BYTES:
            self.recording.whole = False

    def _has_changed(self, tensor: Tensor) -> bool:
        """Whether `tensor` holds something else than when it was noted last."""
        with torch._C.DisableTorchFunction():
            last = self._memory.last_of(tensor)
            if last is None or not is_value(tensor):
                return False
            before = self.recording.events[last].output
            return before.shape == tensor.shape and not torch.equal(before, tensor)
