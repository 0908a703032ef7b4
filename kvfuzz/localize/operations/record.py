"""Records what a torch model computes: each operation with its result, its module, its source line
and the operations that its operands came from.

A torch function mode sees the operations and module hooks see the modules, so the model's code does
not change. Compiled code runs uncompiled. Inside a scripted function or `vmap` nothing is seen but
the result.
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

from kvfuzz.localize.operations.dataflow import Dataflow
from kvfuzz.localize.operations.events import OUTPUT, TAPPED, Event, Recording
from kvfuzz.localize.operations.modules import blocks_of, is_norm, modules_of, placeholder_name
from kvfuzz.localize.operations.source_lines import CallerLines, ModelCode, SourcePlace
from kvfuzz.localize.operations.torch_ops import (
    as_real,
    copy_of,
    is_value,
    results_in,
    tensors_in,
    written_part,
    written_tensor,
)
from kvfuzz.localize.operations.unwritten import TOUCHING, UnwrittenMemory
from kvfuzz.subjects.float64 import unwrapped
from kvfuzz.subjects.tensors import walk

MOST_BYTES = 2 * 1024**3
"""Once the copies take more than this, only the results of modules are recorded."""

# The types that an operation may return that are not states.
_NO_STATE = {bool, int, float, str, torch.Size, torch.dtype, torch.device, torch.layout}


class Detail(IntEnum):
    """How much is kept of each result: its numbers; also its line and the results that it was made
    from; also what else it was made from."""

    NUMBERS = 1
    LINES = 2
    SOURCES = 3


class WatchedSubject:
    """What is known of a subject before it runs: the names of its modules, the ids of its weights
    and the files of its code."""

    def __init__(self, subject: Any) -> None:
        model = getattr(subject, "model", subject)
        modules = modules_of(subject, model)
        self.names = {id(module): name for name, module in modules.items()}
        self.blocks = blocks_of(modules)
        self.code = ModelCode(unwrapped(subject), unwrapped(model))
        self._roots = [subject, model]
        self.weights = {id(tensor) for tensor in self.tensors()}

    def tensors(self) -> list[Tensor]:
        """Returns the tensors that the subject holds now."""
        found = walk(self._roots, modules=True)
        return [thing for thing in found if isinstance(thing, Tensor)]


@contextmanager
def record(
    watched: WatchedSubject, operations: bool = True, detail: Detail = Detail.SOURCES
) -> Iterator[Recording]:
    """Records the results of a subject's modules in this `detail`, and with `operations` those of
    each operation. The caller sets the recording's `step`."""
    recorder = _Recorder(watched, detail)
    recorder.recording.whole = operations
    hooks = [
        register_module_forward_pre_hook(recorder.enter),
        # Also after an error: the stack of modules must be right for whoever catches it.
        register_module_forward_hook(recorder.leave, always_call=True),
    ]
    try:
        with _uncompiled(), recorder:
            yield recorder.recording
    finally:
        for hook in hooks:
            hook.remove()


@contextmanager
def _uncompiled() -> Iterator[None]:
    """Runs compiled code as written: the compiler would otherwise compile the recorder as well."""
    stance = getattr(torch.compiler, "set_stance", None)
    # Without dynamo nothing is compiled, and importing it takes as long as importing torch.
    if "torch._dynamo" not in sys.modules or stance is None:
        yield
        return
    with stance("force_eager"):
        yield


class _Recorder(TorchFunctionMode):
    """Receives every torch operation and every module call, and keeps them as events."""

    def __init__(self, watched: WatchedSubject, detail: Detail) -> None:
        super().__init__()
        self._lines, self._sources = detail >= Detail.LINES, detail >= Detail.SOURCES
        self.recording = Recording(model_code=watched.code, blocks=watched.blocks)
        self._names, self._weights, self._code = watched.names, watched.weights, watched.code
        self._stack: list[str] = [""]
        self._dataflow = Dataflow()
        self._memory = UnwrittenMemory(watched.tensors())
        self._seen: set[str] = set()
        self._callers: list[CallerLines] = []
        self._bytes = 0

    def enter(self, module: nn.Module, _: Any) -> None:
        """A module begins."""
        name = self._names.get(id(module)) or f"{self._stack[-1]}{placeholder_name(module)}"
        self._stack.append(name)
        if self._lines:
            outer = self._callers[-1] if self._callers else None
            self._callers.append(self._code.caller_lines(sys._getframe(1), outer))
        if name not in self._seen:
            self._seen.add(name)
            if is_norm(module):
                self.recording.norms.add(name)

    def leave(self, module: nn.Module, _: Any, output: Any) -> None:
        """A module ends, or has raised."""
        name = self._stack.pop()
        if self._callers:
            self._callers.pop()
        # Copying and comparing are torch operations too, and must not be recorded themselves.
        with torch._C.DisableTorchFunction():
            for part, tensor in enumerate(tensors_in(output)):
                if tensor.is_floating_point() or tensor.is_complex():
                    self._keep_output(module, name, part, tensor)
        if len(self._stack) == 1:
            self._code.add_cache_of(output)

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
        changed = written_tensor(name, args, kwargs)
        if changed is None and args and result is args[0] and isinstance(result, Tensor):
            # Its operand came back: either `to` had nothing to do, and this is no new event, or a
            # function with an `inplace` option wrote into it. Only the content tells which.
            if not self._has_changed(result):
                return result
            changed = result
        results = results_in(result) if changed is None else [written_part(name, args, changed)]
        # kvfuzz itself sets a weight's data, to its float64 double: that is not the model's doing.
        if results and not (name == "__set__" and id(results[0]) in self._weights):
            outer = self._callers[-1] if self._callers else None
            places = self._code.places(sys._getframe(1), outer) if self._lines else ()
            target = results[0] if changed is None else changed
            touches = changed is not None or name in TOUCHING
            if touches and name != "__set__" and is_value(target):
                with torch._C.DisableTorchFunction():
                    call = func, args, kwargs or {}
                    self._memory.note(name, call, target, writes=changed is not None)
            self._keep(name, places, results, changed, self._operands(args, kwargs))
        return result

    def _operands(self, args: tuple[Any, ...], kwargs: Mapping[str, Any] | None) -> list[Tensor]:
        """Returns the operands of an operation, as far as this detail needs them."""
        if not self._lines:
            return []
        return tensors_in(args) + tensors_in(kwargs) if kwargs else tensors_in(args)

    def _keep(
        self,
        name: str,
        places: tuple[SourcePlace, ...],
        results: Sequence[Tensor],
        changed: Tensor | None,
        operands: Sequence[Tensor],
    ) -> None:
        """Keeps the results of an operation; `changed` is the tensor that it wrote into."""
        with torch._C.DisableTorchFunction():
            for part, tensor in enumerate(results):
                if is_value(tensor):
                    event = self.recording.new(name, self._stack[-1], places, part, tensor)
                    self._fill(event, operands)
                    self._dataflow.made(tensor, event.index)
                    if changed is not None and name != "__set__":
                        self._dataflow.written(tensor, event.index)

    def _keep_output(self, module: nn.Module, name: str, part: int, tensor: Tensor) -> None:
        """Keeps a result of `module`; without a copy where the last operation inside gave it."""
        known, number = self._dataflow.producers(tensor), self._dataflow.last_of(tensor)
        last = None if number is None else self.recording.events[number]
        place = self._code.forward_of(type(module))
        event = self.recording.new(OUTPUT, name, (place,), part, tensor)
        if last is not None and last.output.shape == tensor.shape:
            event.output, event.inputs, event.same = last.output, known, last.same or last
        else:
            self._fill(event, ())
            event.inputs = known if self.recording.whole else event.inputs

    def _fill(self, event: Event, operands: Sequence[Tensor]) -> None:
        """Copies the output of `event`, and notes what its operands were made by."""
        result = event.output
        event.output = self._copy(result)
        self._bytes += event.output.nbytes
        if operands:
            made: set[int] = set()
            for operand in operands:
                known = self._dataflow.producers(operand)
                made.update(known)
                if self._sources and not known and id(operand) not in self._weights:
                    event.unseen |= not isinstance(operand, nn.Parameter)
            event.inputs = tuple(sorted(made))
            if self._sources:
                event.reads_unwritten = self._memory.is_read(operands, result)
            if event.operation in TAPPED and not any(id(t) in self._weights for t in operands):
                event.taps = tuple(map(self._copy, operands))
                self._bytes += sum(tap.nbytes for tap in event.taps)
        if not self.recording.whole:
            # Without operations nobody knows what a module read. Chaining each event to the one
            # before lets the search back from the logits reach them all.
            event.inputs = (event.index - 1,) if event.index else ()
        if self._bytes > MOST_BYTES:
            self.recording.whole = False

    def _has_changed(self, tensor: Tensor) -> bool:
        """Whether the content of `tensor` is not what was last recorded of it."""
        with torch._C.DisableTorchFunction():
            last = self._dataflow.last_of(tensor)
            if last is None or not is_value(tensor):
                return False
            before = self.recording.events[last].output
            now = self._copy(tensor)
            return before.shape == now.shape and not torch.equal(before, now)

    def _copy(self, tensor: Tensor) -> Tensor:
        """Returns the numbers of `tensor` to keep: zeros where nothing has been written."""
        return as_real(self._memory.blanked(copy_of(tensor), tensor))
