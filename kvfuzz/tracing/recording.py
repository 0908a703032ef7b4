"""Record what a torch model computes: each operation with its result, the module that it is in, its
line of source, and the operations that its operands came from.

Operations are seen by a torch function mode and modules by hooks, so that no code of the model
changes. What is compiled runs as it is written. What a scripted function does inside, or one under
`vmap`, is not seen: its result alone is.
"""

from __future__ import annotations

import linecache
import sys
import sysconfig
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.module import (
    register_module_forward_hook,
    register_module_forward_pre_hook,
)
from torch.overrides import TorchFunctionMode

import kvfuzz
from kvfuzz.location import Line, short_path
from kvfuzz.tensors import walk

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
# What Python calls for `x[i] = y` and for `x += y` and its like.
_AUGMENTED = {"__setitem__"} | {
    f"__i{name}__"
    for name in ("add", "sub", "mul", "div", "truediv", "floordiv", "mod", "pow", "and", "or",
                 "xor", "lshift", "rshift")
}  # fmt: skip
_OURS = Path(kvfuzz.__file__).parent
_SKIPPED = (
    str(Path(torch.__file__).parent),
    str(_OURS),
    "<",
)
# So many lines of the model's packages are kept of each call.
_DEEPEST = 6
_CALLER = str(_OURS / "run.py")
_OWN_MODELS = str(_OURS / "zoo")
_STDLIB = sysconfig.get_paths()["stdlib"]


Place = tuple[str, int, str]
"""A file name, the number of a line, and the function that it is in."""
NOWHERE: Place = ("", 0, "")


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
    """The events of a run in order. `norms` are the names of the modules that normalise, `files`
    the files and folders of the model's own code and of its cache's, `owner` the name of the module
    that holds the layers. `whole` is false where
    operations were too many to keep, so that modules alone are there."""

    events: list[Event] = field(default_factory=list)
    norms: set[str] = field(default_factory=set)
    files: set[str] = field(default_factory=set)
    whole: bool = True
    step: int = -1
    owner: str = "\0"

    def line_of(self, event: Event) -> Line | None:
        """The line to name for `event`: in the files of the model itself and of its cache, before
        any helper that these call; None where nothing but torch was seen. Positions and masks are
        made by helpers."""
        own = [place for place in event.places if place[0].startswith(tuple(self.files))]
        made_before = event.module == self.owner and event.output.dim() > 2
        helped = made_before or not event.output.is_floating_point()
        named = list(event.places if helped or not own else own)
        return _line(named[0]) if named else None

    def caller_of(self, event: Event) -> Line | None:
        """The line of the module's forward that led to `event`."""
        found = next((place for place in event.places if place[2].endswith(".forward")), None)
        return _line(found) if found else None

    def of(self, step: int) -> list[Event]:
        """The events of one step."""
        return [event for event in self.events if event.step == step]


@contextmanager
def recorded(subject: Any, operations: bool = True) -> Iterator[Recording]:
    """Inside, what the modules of `subject` compute is recorded, and with `operations` each
    operation in them. The caller counts `step` up."""
    recorder = _Recorder(subject)
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
    def __init__(self, subject: Any) -> None:
        super().__init__()
        self.recording = Recording()
        model = getattr(subject, "model", subject)
        self._names = _names_of(subject, model)
        classes = _classes(subject, model)
        self._homes: dict[str, int] = {}
        self._roots = tuple({_root(name) for one in classes if (name := _source_of(one))})
        self.recording.files |= _own_files(subject, model)
        self._stack: list[tuple[str, int]] = [("", 0)]
        self._calls: Counter[str] = Counter()
        self._made: dict[int, int] = {}
        self._written: dict[int, int] = {}
        self._alive: list[Tensor] = []
        self._weights = {
            id(thing) for thing in walk([subject, model], modules=True) if isinstance(thing, Tensor)
        }
        self._bytes = 0
        self._run = -1

    def enter(self, module: nn.Module, _: Any) -> None:
        """A module begins."""
        self._fresh()
        name = self._names.get(id(module)) or f"{self._stack[-1][0]}{_unnamed(module)}"
        self._stack.append((name, self._calls[name]))
        self._calls[name] += 1
        if is_norm(module):
            self.recording.norms.add(name)

    def leave(self, module: nn.Module, _: Any, output: Any) -> None:
        """A module ends, or has raised."""
        name, call = self._stack.pop()
        for part, tensor in enumerate(_tensors(output)):
            if tensor.is_floating_point():
                places = (_place_of(module.__class__),)
                self._note(OUTPUT, name, call, places, part, tensor, (), None)
        if len(self._stack) == 1:
            self.recording.files |= set(_files_of_objects(output))

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        if not self.recording.whole and len(self._stack) > 1:
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
        operands = _tensors(args)
        if kwargs:
            operands += _tensors(kwargs)
        places = self._places(sys._getframe(1))
        module, call = self._stack[-1]
        for part, tensor in enumerate(results):
            if _is_value(tensor):
                self._note(name, module, call, places, part, tensor, operands, changed)
        return result

    def _fresh(self) -> None:
        """Calls of a module are counted within a step."""
        if self._run != self.recording.step:
            self._run = self.recording.step
            self._calls.clear()

    def _note(
        self,
        operation: str,
        module: str,
        call: int,
        places: tuple[Place, ...],
        part: int,
        tensor: Tensor,
        operands: Sequence[Tensor],
        changed: Tensor | None,
    ) -> None:
        events = self.recording.events
        index = len(events)
        with torch._C.DisableTorchFunction():
            known = self._producers(tensor)
            taps: tuple[Tensor, ...] = ()
            if operation == OUTPUT and known and not self._newer(tensor, known):
                output, inputs, unseen = events[known[0]].output, known, False
            else:
                inputs = tuple(sorted({i for t in operands for i in self._producers(t)}))
                unseen = any(self._is_unseen(t) for t in operands)
                if not self.recording.whole:
                    # Nothing tells what a module is given: it may be all that was there before.
                    inputs = (index - 1,) if index else ()
                elif operation == OUTPUT:
                    inputs = known
                output = tensor.detach().clone()
                if operation in TAPPED and not any(id(t) in self._weights for t in operands):
                    taps = tuple(t.detach().clone() for t in operands)
                self._bytes += sum(t.numel() * t.element_size() for t in (output, *taps))
            if operation != OUTPUT:
                self._made[id(tensor)] = index
                self._alive.append(tensor)  # an id stands for one object only while that lives
                if changed is not None and operation != "__set__" and _storage(tensor):
                    self._written[_storage(tensor)] = index
        step = self.recording.step
        events.append(
            Event(index, step, operation, module, call, places, part, output, inputs, taps, unseen)
        )
        if self._bytes > MOST_BYTES:
            self.recording.whole = False

    def _producers(self, tensor: Tensor) -> tuple[int, ...]:
        """The event that made `tensor`, or what has since written into its storage."""
        found = {self._made[id(tensor)]} if id(tensor) in self._made else set()
        if self._written:
            writer = self._written.get(_storage(tensor), -1)
            if writer > max(found, default=-1):
                found.add(writer)
        return tuple(sorted(found, reverse=True))

    def _has_changed(self, tensor: Tensor) -> bool:
        """Whether `tensor` holds something else than when it was noted last."""
        with torch._C.DisableTorchFunction():
            known = self._producers(tensor)
            if not known or not _is_value(tensor):
                return False
            before = self.recording.events[known[0]].output
            return before.shape == tensor.shape and not torch.equal(before, tensor)

    def _newer(self, tensor: Tensor, known: tuple[int, ...]) -> bool:
        return self.recording.events[known[0]].output.shape != tensor.shape

    def _is_unseen(self, tensor: Tensor) -> bool:
        return (
            id(tensor) not in self._made
            and id(tensor) not in self._weights
            and not isinstance(tensor, nn.Parameter)
            and _storage(tensor) not in self._written
        )

    def _places(self, frame: FrameType | None) -> tuple[Place, ...]:
        """The lines of the model's own packages that lead to `frame`, the innermost first; if there
        is none, the innermost of code that is neither torch nor kvfuzz nor the standard library."""
        found: list[Place] = []
        other: Place | None = None
        homes = self._homes
        while frame is not None and len(found) < _DEEPEST:
            code = frame.f_code
            filename = code.co_filename
            if filename == _CALLER:
                break
            rank = homes[filename] if filename in homes else self._rank(filename)
            if rank:
                place = filename, frame.f_lineno, code.co_qualname
                if rank == 2:
                    found.append(place)
                other = other or place
            frame = frame.f_back
        return tuple(found) or ((other,) if other else ())

    def _rank(self, filename: str) -> int:
        if filename not in self._homes:
            self._homes[filename] = _rank_of(filename, self._roots)
        return self._homes[filename]


def _line(place: Place) -> Line:
    filename, number, function = place
    text = linecache.getline(filename, number).strip()
    return Line(short_path(filename), number, text, function)


def is_norm(module: nn.Module) -> bool:
    """Whether `module` normalises, told by its kind: no modules inside, weights of one dimension
    alone, and a small number that keeps it from dividing by nought."""
    if next(module.children(), None) is not None:
        return False
    weights = list(module.parameters(recurse=False))
    small = any(isinstance(v, float) and 0 < v < 1e-2 for v in vars(module).values())
    return small and all(weight.dim() <= 1 for weight in weights)


def _classes(subject: Any, model: Any) -> set[type]:
    """The classes of the model's code."""
    classes = {type(subject), type(model)}
    if isinstance(model, nn.Module):
        classes |= {type(module) for module in model.modules()}
    return {one for one in classes if not _is_skipped(_source_of(one))}


def _own_files(subject: Any, model: Any) -> set[str]:
    """The folder of the model's class, and the files of the classes of its modules that hold
    others: what these use besides are helpers."""
    if not isinstance(model, nn.Module) or _is_skipped(_source_of(type(model))):
        return {_source_of(type(subject))}
    outer = {type(module) for module in model.modules() if next(module.children(), None)}
    files = {_source_of(one) for one in outer if not _is_skipped(_source_of(one))}
    return files | {str(Path(_source_of(type(model))).parent) + "/"}


def _files_of_objects(output: Any) -> Iterator[str]:
    """The files of the classes of what is no tensor in a model's answer: its cache."""
    values = output.values() if isinstance(output, Mapping) else output
    if isinstance(values, Tensor | str) or not isinstance(values, Iterable):
        return
    for value in values:
        if not isinstance(value, Tensor | Mapping | tuple | list | str | int | float | None):
            filename = _source_of(type(value))
            if filename and not _is_skipped(filename):
                yield filename


def _rank_of(filename: str, homes: Sequence[str]) -> int:
    """2 for the model's code, 1 for other code that may be named, 0 for what may not."""
    if _is_skipped(filename):
        return 0
    if any(filename == home or filename.startswith(home + "/") for home in homes):
        return 2
    inside = filename.startswith(_STDLIB) and "site-packages" not in filename
    return 0 if inside else 1


def _is_skipped(filename: str) -> bool:
    return filename.startswith(_SKIPPED) and not filename.startswith(_OWN_MODELS)


def _names_of(subject: Any, model: Any) -> dict[int, str]:
    """The names of the modules of `subject` by their ids: as in its `model`, or from its attributes
    on."""
    roots = {"": model} if isinstance(model, nn.Module) else dict(_held(subject))
    names: dict[int, str] = {}
    for root, module in roots.items():
        for name, inner in module.named_modules(prefix=root):
            names.setdefault(id(inner), name)
    return names


def _held(thing: Any, name: str = "") -> Iterator[tuple[str, nn.Module]]:
    """The modules among the attributes of `thing`, and in their lists and dicts, by their names."""
    parts: Iterable[tuple[Any, Any]] = ()
    if isinstance(thing, nn.Module):
        yield name, thing
    elif isinstance(thing, Mapping):
        parts = thing.items()
    elif isinstance(thing, list | tuple):
        parts = enumerate(thing)
    elif not name:
        parts = getattr(thing, "__dict__", {}).items()
    for key, value in parts:
        yield from _held(value, f"{name}.{key}" if name else str(key))


def _unnamed(module: nn.Module) -> str:
    """A name for a module that has none: the model itself, or one made on the way."""
    return f"<{type(module).__name__}>"


def _root(filename: str) -> str:
    """The folder of the package that `filename` is in, or the file itself outside packages."""
    root = Path(filename).parent
    if not (root / "__init__.py").exists():
        return filename
    while (root.parent / "__init__.py").exists():
        root = root.parent
    return str(root)


def _source_of(one: type) -> str:
    module = sys.modules.get(one.__module__)
    return getattr(module, "__file__", None) or ""


def _place_of(one: type) -> Place:
    """Where the forward of a class of modules is."""
    code = getattr(getattr(one, "forward", None), "__code__", None)
    name = f"{one.__qualname__}.forward"
    return (code.co_filename, code.co_firstlineno, name) if code else (_source_of(one), 0, name)


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
