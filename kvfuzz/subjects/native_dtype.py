"""Finds the dtypes that a subject can run in, and casts it to another one."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from kvfuzz.case.case import Case
from kvfuzz.errors import InvalidSubject, UsageError
from kvfuzz.subjects.call_limits import call_limits_of
from kvfuzz.subjects.dtypes import compute_dtype, dtype_name
from kvfuzz.subjects.float64 import Float64Subject, twin_of, weights_of
from kvfuzz.subjects.perturb import perturbing
from kvfuzz.subjects.precision import record_casts
from kvfuzz.subjects.protocol import device_of, require_protocol
from kvfuzz.subjects.run import run_cached, run_uncached, seeded

Build = Callable[[int, str, Mapping[str, Any]], Any]
"""Builds a subject from a model seed, a dtype ("" for its own) and a configuration."""

PROPORTIONAL = 1e-3
"""How far from proportional the response to two perturbations may be, as a share of it."""


def find_dtypes(
    build: Build, config: Mapping[str, Any], name: str, asked: str | None
) -> tuple[str, ...]:
    """Returns the dtypes in which cases may run the subjects of `build`: the one that was `asked`
    for, or else their own and, if they compute in it, float64."""
    native = native_dtype(build(0, asked or "", config), name)
    if asked is not None or native == "float64":
        return (native,)
    try:
        pure = computes_in_float64(build(0, "float64", config))
    except (Exception, SystemExit):
        pure = False
    return (native, "float64") if pure else (native,)


def native_dtype(subject: Any, name: str) -> str:
    """Returns the dtype that `subject` computes in, read from one uncached call and its model.

    It is float32 for a subject that raises in that call: a case will say so. Raises InvalidSubject
    if it breaks the protocol.
    """
    logits = _dtype_of_logits(require_protocol(subject, name), name)
    return "float32" if logits is None else dtype_name(compute_dtype(logits, subject))


def computes_in_float64(subject: Any) -> bool:
    """Whether `subject`, run in float64, nowhere computes in less: an island of lower precision
    would look like a fault of the cache.

    Three signs, over a few tokens. The logits of both paths are float64. The uncached ones respond
    in proportion to two perturbations of the weights, one far below the roundoff of float32 and one
    above it: an island swallows the smaller. And the cached path casts to no lower precision, other
    than the subject's own dtype, which its float64 twin replaces.
    """
    if not weights_of(subject):
        return False
    length, vocab_size = min(3, subject.max_length or 3), subject.vocab_size
    rows = tuple(tuple(t % vocab_size for t in row[:length]) for row in ((1, 2, 3), (3, 0, 1)))
    sizes = (2, 1) if length == 3 else (1,) * length
    case = Case(rows, call_limits_of(subject).divided(sizes))
    watched: list[Tensor] = []
    with seeded(0):
        uncached = run_uncached(subject, case.tokens)
        cached = run_cached(subject, case)
        casts = record_casts(lambda: watched.append(run_cached(subject, case)))
        twin = twin_of(subject)
        responses = []
        with twin.running(), perturbing(twin.weights, twin.values) as perturb:
            for size in (2.0**-34, 2.0**-20):
                perturb(size, 0)
                responses.append((run_uncached(subject, case.tokens) - uncached) / size)
    if not uncached.dtype == cached.dtype == torch.float64:
        return False
    if any(target in twin.native | {torch.float32} for _, target in casts):
        return False
    # Under a dispatch mode a legacy constructor (torch.FloatTensor) makes another dtype: then the
    # watched run says nothing about the real one.
    if not torch.equal(watched[0], cached):
        return False
    small, large = responses
    return bool((small - large).norm() <= PROPORTIONAL * large.norm()) and bool(large.any())


def put(subject: Any, name: str, dtype: str | None, device: str | None, known: bool = False) -> Any:
    """Returns `subject` in `dtype` and on `device`; None leaves either as it is.

    A narrower dtype and a device move the module `model`. For float64 the weights stay as they are,
    and the subject's float64 twin runs. Raises UsageError if the subject cannot be moved, unless it
    is `known` that subjects like it can run in `dtype`.
    """
    wanted = torch.device(device) if device else None
    moves = wanted is not None and wanted.type != "cpu" and device_of(subject).type != wanted.type
    narrower = None if dtype == "float64" else dtype
    model = _module_of(subject)
    if moves or narrower:
        if model is None:
            raise _immovable(name, dtype or device, "dtype" if dtype else "device")
        model.to(
            device=wanted if moves else None,
            dtype=getattr(torch, narrower) if narrower else None,
        )
    if dtype != "float64":
        return subject
    twin = Float64Subject(subject)
    if not known and _dtype_of_logits(twin, name) not in (torch.float64, None):
        raise _immovable(name, dtype, "dtype")
    return twin


def _module_of(subject: Any) -> torch.nn.Module | None:
    """Returns the torch module to move: the `model` of `subject`, or `subject` itself."""
    model = getattr(subject, "model", None)
    found = (one for one in (model, subject) if isinstance(one, torch.nn.Module))
    return next(found, None)


def _immovable(name: str, where: str | None, argument: str) -> UsageError:
    return UsageError(
        f"{name} cannot be put in {where}: it exposes no torch module as `model`, and its factory "
        f"takes no argument `{argument}`"
    )


def _dtype_of_logits(subject: Any, name: str) -> torch.dtype | None:
    """Returns the dtype of the logits of one uncached call; None if the call raises."""
    try:
        return run_uncached(subject, ((0,),), name).dtype
    except InvalidSubject:
        raise
    except Exception:
        return None
