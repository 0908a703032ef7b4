"""Runs a subject in float64, and perturbs its weights by a unit roundoff.

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
import torch.nn.functional as F
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
    default = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    promotion = Promotion(native)
    try:
        with promotion if function_calls else nullcontext():
            yield promotion
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

    `weights` are the tensors to perturb, `native` their dtypes outside. Whatever the subject writes
    into its attributes while the twin runs (a table made on first use, a counter) belongs to the
    twin: the next run of the twin finds it, the subject never does. `always` is true if all calls
    of the subject run in the twin (Float64Subject), and `stays` if it runs already. `promotes` is
    true once a run has asked for float32.
    """

    def __init__(self, subject: Any, always: bool = False) -> None:
        self.always = always
        self.exact = True
        self.stays = self.promotes = False
        roots = [subject, getattr(subject, "model", None)]
        things = list(walk(roots, modules=True))
        self.weights = _weights_among(things)
        self.native = frozenset(weight.dtype for weight in self.weights)
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
    """`subject`, all of whose calls run in its float64 twin."""

    def __init__(self, subject: Any) -> None:
        self.subject = subject
        self.twin = Twin(subject, always=True)
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


# Larger numbers stand for infinity in a mask; a perturbation could overflow them to infinity.
_MOST = 1e30
# Larger weights are perturbed in pieces of this many entries: what is needed besides stays small.
_PIECE = 2**20
# The least length of a row of random signs, and the most that is kept in memory.
_LEAST_ROW, _MOST_KEPT = 2**18, 2**23
# Draw number n begins n * _SHIFT signs into the row; there are at most _MOST_DRAWS.
_MOST_DRAWS, _SHIFT = 64, 17
# Draws from this number on perturb embedded tokens, those before it weights.
_EMBEDDED = 32


@contextmanager
def perturbing(
    weights: Sequence[Tensor], values: Sequence[Tensor] | None = None
) -> Iterator[Callable[[float, int], None]]:
    """Yields `perturb(size, draw)`, which multiplies each entry of the `weights`, and of all
    embedded tokens, by 1 + size or 1 - size; random signs number `draw` decide which. The product
    is rounded to the dtype of the weight, float64 in a twin. The weights are restored when the
    context ends, from `values`, tensors of the same numbers, or else from copies."""
    embedding, now = F.embedding, [0.0, 0]

    @functools.wraps(embedding)
    def embedded(*args: Any, **kwargs: Any) -> Tensor:
        """Perturbs each occurrence of a token on its own: if a model subtracts neighbours, a
        perturbation of the table would cancel between equal tokens, as real rounding does not."""
        found = embedding(*args, **kwargs)
        with torch._C.DisableTorchFunction():  # hidden from the modes that watch the subject
            sign = signs(found.numel(), int(now[1]) + _EMBEDDED).view(found.shape)
            moved = found * (1 + now[0] * sign.to(found.device))
            return moved if in_float64 else moved.to(found.dtype)

    with torch.no_grad():
        in_float64 = all(weight.dtype == torch.float64 for weight in weights)
        pieces = list(_pieces(weights, values))
        sizes = [value.numel() for _, value in pieces]

        def perturb(size: float, draw: int) -> None:
            now[:] = size, draw
            for (weight, value), sign in zip(pieces, _signs_of(sizes, draw), strict=True):
                # In place, so that a view of a weight that the subject keeps sees it too.
                _move(weight, value.double(), sign.to(weight.device).view(weight.shape), size)

        F.embedding = embedded
        try:
            yield perturb
        finally:
            F.embedding = embedding
            for weight, value in pieces:
                weight.copy_(value)


def _move(weight: Tensor, exact: Tensor, sign: Tensor, size: float) -> None:
    """Writes `exact` x (1 + `size` x `sign`) into `weight`, rounded to its dtype."""
    if weight.dtype == torch.float64:
        torch.addcmul(exact, exact, sign, value=size, out=weight)
    else:
        weight.copy_(torch.addcmul(exact, exact, sign, value=size))


def _pieces(
    weights: Sequence[Tensor], values: Sequence[Tensor] | None
) -> Iterator[tuple[Tensor, Tensor]]:
    """Yields the parts of `weights` to perturb, none of them long, each with its numbers: a copy
    or, where that would be large, those in `values`."""
    if sum(weight.numel() for weight in weights) <= _MOST_KEPT:
        values = None
    for weight, value in zip(weights, values or weights, strict=True):
        whole = weight.detach()
        if not whole.numel() or float(_largest(whole)) >= _MOST:
            continue
        known = _copy(whole) if value.dtype == whole.dtype else value.detach()
        if whole.numel() > _PIECE and whole.is_contiguous() and known.is_contiguous():
            rows = (torch.split(one.view(-1), _PIECE) for one in (whole, known))
            yield from zip(*rows, strict=True)
        else:
            yield whole, known


def _copy(weight: Tensor) -> Tensor:
    """Returns a copy of `weight`. That of a large one is float32 if this loses nothing, as of a
    float32 checkpoint that was read in float64."""
    if weight.numel() > _PIECE and weight.dtype == torch.float64:
        narrow = weight.float()
        if bool((narrow == weight).all()):
            return narrow
    return weight.clone()


_largest = functools.partial(torch.linalg.vector_norm, ord=float("inf"))
"""Returns the largest |entry|, without a copy of all of them."""


def _signs_of(sizes: Sequence[int], draw: int) -> Iterator[Tensor]:
    """Yields `signs(sum(sizes), draw)` in pieces of these sizes. A row that is too long to be kept
    is never held whole."""
    count = sum(sizes)
    if _length_of_row(count) <= _MOST_KEPT:
        yield from torch.split(signs(count, draw), list(sizes))
        return
    generator = torch.Generator().manual_seed(0)
    _random_signs(draw * _SHIFT, generator)
    for size in sizes:
        yield _random_signs(size, generator)


def signs(count: int, draw: int) -> Tensor:
    """Returns random signs -1 or 1, float64 [count], the same for the same `draw`.

    All draws share one long row of signs, and each begins at another place in it: that is cheaper
    than to draw anew for every case.
    """
    length = _length_of_row(count)
    row = _row(length) if length <= _MOST_KEPT else _row.__wrapped__(length)
    return row[draw * _SHIFT : draw * _SHIFT + count]


def _length_of_row(count: int) -> int:
    return max(_LEAST_ROW, 1 << (count + _MOST_DRAWS * _SHIFT).bit_length())


@functools.lru_cache(maxsize=4)
def _row(length: int) -> Tensor:
    return _random_signs(length, torch.Generator().manual_seed(0))


def _random_signs(count: int, generator: torch.Generator) -> Tensor:
    """Returns the next `count` signs of the generator. One row begins with the same signs as a
    longer one, however it is divided."""
    row = torch.empty(count, dtype=torch.float64)
    return row.random_(0, 2, generator=generator).mul_(2).sub_(1)
