"""Runs a subject in float64.

The float64 *twin* of a subject has the same weights and does all arithmetic in float64, also where
the model's code asks for float32.

The twin runs the subject's own code, so the weights are changed in the subject itself. They are bit
for bit what they were when a context ends, also by an exception.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from kvfuzz.errors import UsageError
from kvfuzz.subjects.protocol import METHODS, OFFERED
from kvfuzz.subjects.tensors import LARGE, free_bytes, free_memory, walk

_NARROW = {torch.float16: Tensor.half, torch.bfloat16: Tensor.bfloat16}


@contextmanager
def promoted(
    function_calls: bool = True, native: frozenset[torch.dtype] = frozenset()
) -> Iterator[Promotion]:
    """Inside the context, code that asks torch for float32 gets float64, and float64 is the default
    dtype. The promotion says afterwards whether it was `needed`.

    A model in float64 often keeps islands such as `softmax(..., dtype=torch.float32)` or
    `x.float()`: they round to 1e-7, which hides small faults and looks like one. A request for
    float16 or bfloat16 stays, because a cache that rounds to them is a fault to find; unless it is
    a dtype of the model's own weights (`native`), which in the twin are float64. Without
    `function_calls` only the default dtype changes.
    """
    promotion = Promotion(native)
    with promoting(promotion, function_calls):
        yield promotion


@contextmanager
def promoting(promotion: Promotion, function_calls: bool = True) -> Iterator[None]:
    """Inside the context float64 is the default dtype and, with `function_calls`, the `promotion`
    sees all calls of torch."""
    default = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        with promotion if function_calls else nullcontext():
            yield
    finally:
        torch.set_default_dtype(default)


class Promotion(TorchFunctionMode):
    """Passes float64 to every torch function that is called with float32 or a `native` dtype, and
    float64 methods for `.float()` and the like. `needed` says whether there was such a call."""

    def __init__(self, native: frozenset[torch.dtype] = frozenset()) -> None:
        super().__init__()
        self.needed = False
        self._wide = dict.fromkeys({torch.float32} | native, torch.float64)
        self._wide[torch.complex64] = torch.complex128
        self._methods = {Tensor.float, *(_NARROW[dtype] for dtype in native if dtype in _NARROW)}

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        if func in self._methods:
            self.needed = True
            func = Tensor.double
        # Plain loops: every call of torch in float64 comes through here.
        for value in args:
            if type(value) is torch.dtype and value in self._wide:
                self.needed = True
                args = tuple(map(self._wider, args))
                break
        if not kwargs:
            return func(*args)
        for value in kwargs.values():
            if type(value) is torch.dtype and value in self._wide:
                self.needed = True
                kwargs = {name: self._wider(value) for name, value in kwargs.items()}
                break
        return func(*args, **kwargs)

    def _wider(self, value: Any) -> Any:
        return self._wide.get(value, value) if type(value) is torch.dtype else value


class Twin:
    """The float64 twin of `subject`: inside `running()` the subject holds float64 tensors.

    `weights` are the tensors to perturb, `native` their dtypes outside (given for a subject that
    was built in float64). Whatever the subject writes into its attributes while the twin runs (a
    table made on first use, a counter) belongs to the twin: the next run of the twin finds it, the
    subject never does. `always` is true if all calls of the subject run in the twin
    (Float64Subject), and `stays` if it runs already. `promotes` is true once a run has asked for
    float32.
    """

    def __init__(
        self, subject: Any, always: bool = False, native: frozenset[torch.dtype] | None = None
    ) -> None:
        self.always = always
        self.exact = True
        self.stays = self.promotes = False
        roots = [subject, getattr(subject, "model", None)]
        things = list(walk(roots, modules=True))
        self.weights = _weights_among(things)
        own = frozenset(weight.dtype for weight in self.weights)
        self.native = own if native is None else native
        known = {id(weight) for weight in self.weights}
        others = (thing for thing in things if isinstance(thing, Tensor) and id(thing) not in known)
        self._tensors = [*self.weights, *filter(_is_inexact, others)]
        self._doubles: list[Tensor] | None = None
        self.values: list[Tensor] = []
        """While the twin runs, the tensors outside it that hold the numbers of the `weights`."""
        self._owners = [
            thing for thing in things if thing is subject or isinstance(thing, nn.Module)
        ]
        self.attributes: list[_Attributes] | None = None

    @contextmanager
    def running(self, promoting: bool = True) -> Iterator[Promotion]:
        """Inside the context the subject's tensors are float64 and, if `promoting`, its requests
        for float32 give float64."""
        if self.stays:
            with promoted(promoting, self.native) as promotion:
                yield promotion
            return
        if self._doubles is None:
            _require_room(self._tensors)
            self._doubles = [_double(tensor) for tensor in self._tensors]
        # The modes that watch the subject (Promotion, the locator's tracer) must not see this.
        with torch._C.DisableTorchFunction():
            held = [tensor.data for tensor in self._tensors]
        self.values = held[: len(self.weights)]
        attributes = _attributes_of(self._owners)
        try:
            # `.data` exchanges pointers and copies no values: cheap, and exact on the way back.
            with torch._C.DisableTorchFunction():
                _exchange(self._tensors, self._doubles)
            if self.attributes is not None:
                _set_attributes(self._owners, self.attributes)
            with promoted(promoting, self.native) as promotion:
                yield promotion
        finally:
            self.attributes = _attributes_of(self._owners)
            _set_attributes(self._owners, attributes)
            with torch._C.DisableTorchFunction():
                _exchange(self._tensors, held)
            self.values = []

    def forget(self) -> None:
        """Frees the float64 tensors, until the twin runs again. What keeps a subject alive, such as
        a circle of references, would keep them too."""
        if self._doubles is not None and not self.always:
            size = sum(tensor.nbytes for tensor in self._doubles)
            self._doubles = None
            free_memory(size)


_Attributes = tuple[dict[str, Any], dict[str, Any]]
"""The `__dict__` of an object, and the buffers of a module."""


def _attributes_of(owners: Sequence[Any]) -> list[_Attributes]:
    return [
        (dict(getattr(owner, "__dict__", {})), dict(getattr(owner, "_buffers", {})))
        for owner in owners
    ]


def _set_attributes(owners: Sequence[Any], attributes: Sequence[_Attributes]) -> None:
    for owner, (plain, buffers) in zip(owners, attributes, strict=True):
        if hasattr(owner, "__dict__"):
            vars(owner).clear()
            vars(owner).update(plain)
        if isinstance(owner, nn.Module):
            owner._buffers.clear()
            owner._buffers.update(buffers)


class Float64Subject:
    """`subject`, all of whose calls run in its float64 twin. `own` is the same in its own dtype:
    another object if `subject` was built in float64, in place of the dtypes `native`."""

    def __init__(
        self, subject: Any, own: Any = None, native: frozenset[torch.dtype] | None = None
    ) -> None:
        self.subject = subject
        self.own = subject if own is None else own
        self.twin = Twin(subject, always=True, native=native)
        self._watched = False

    @contextmanager
    def staying(self) -> Iterator[None]:
        """Inside the context the twin runs all the time, which halves the time of a small model. It
        promotes only the first uncached call. Afterwards `promotes` says whether the runs inside
        may have needed more: that call asked for float32, or a call raised. What they wrote into
        the attributes of the subject is forgotten."""
        attributes = self.twin.attributes
        try:
            with self.twin.running(promoting=False):
                self.twin.stays, self._watched = True, False
                yield
        finally:
            self.twin.stays = False
            self.twin.attributes = attributes

    def __getattr__(self, name: str) -> Any:
        found = getattr(self.subject, name)
        if (name not in METHODS and name not in OFFERED) or not callable(found):
            return found

        @functools.wraps(found)
        def called(*args: Any, **kwargs: Any) -> Any:
            if self.twin.stays and (self._watched or name != "uncached"):
                try:
                    return found(*args, **kwargs)
                except Exception:
                    self.twin.promotes = True  # such as for a product of float32 and float64
                    raise
            self._watched = True
            with self.twin.running() as promotion:
                answer = found(*args, **kwargs)
            self.twin.promotes |= promotion.needed
            return answer

        return called


class TwinlessSubject:
    """`subject`, which never runs in float64: its noise is measured in its own dtype.

    For a model whose float64 twin does not fit into memory. A fault that is smaller than the
    rounding of its dtype is then not seen.
    """

    perturbed = None

    def __init__(self, subject: Any) -> None:
        self.subject = subject
        self.twin = _Itself(subject)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.subject, name)


class _Itself(Twin):
    """Stands for the twin of a TwinlessSubject: runs the subject as it is."""

    def __init__(self, subject: Any) -> None:
        super().__init__(subject)
        self.exact = False

    @contextmanager
    def running(self, promoting: bool = True) -> Iterator[Promotion]:  # noqa: ARG002
        yield Promotion()


WRAPPERS = (Float64Subject, TwinlessSubject)


def unwrapped(subject: Any) -> Any:
    """Returns the subject that the user's code made."""
    while isinstance(subject, WRAPPERS):
        subject = subject.subject
    return subject


def twin_of(subject: Any) -> Twin:
    """Returns the `twin` of `subject` if it has one, else a new one."""
    own = getattr(subject, "twin", None)
    return own if isinstance(own, Twin) else Twin(subject)


def weights_of(subject: Any) -> list[Tensor]:
    """Returns the floating-point tensors that `subject` computes with, as far as they can be found:
    the parameters of its `model` and of all modules in it, or else all tensors that it holds.
    Empty for an opaque subject."""
    return _weights_among(walk([subject, getattr(subject, "model", None)], modules=True))


def _weights_among(things: Iterable[Any]) -> list[Tensor]:
    found = [t for t in things if isinstance(t, Tensor) and t.is_floating_point()]
    return [tensor for tensor in found if isinstance(tensor, nn.Parameter)] or found


def _exchange(tensors: Sequence[Tensor], others: Sequence[Tensor]) -> None:
    """Lets `tensors` point to the data of `others`, where the dtype differs."""
    for tensor, other in zip(tensors, others, strict=True):
        if tensor.dtype != other.dtype:
            tensor.data = other


def _require_room(tensors: Sequence[Tensor]) -> None:
    """Raises UsageError if float64 copies of `tensors` do not fit into free memory: the system
    would end the process without a word."""
    others = (one for one in tensors if one.dtype != torch.float64 and one.device.type == "cpu")
    need = sum(8 * one.numel() for one in others)
    free = free_bytes() if need > LARGE else None
    if free is not None and need > free:
        raise UsageError(
            f"the float64 twin of this model needs {need / 1e9:.1f} GB of memory and "
            f"{free / 1e9:.1f} GB are free: --no-twin fuzzes without it, and sees less"
        )


def _is_inexact(tensor: Tensor) -> bool:
    return tensor.is_floating_point() or tensor.is_complex()


def _double(tensor: Tensor) -> Tensor:
    return tensor.detach().to(torch.complex128 if tensor.is_complex() else torch.float64)
