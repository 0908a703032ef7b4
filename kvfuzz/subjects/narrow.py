"""Finds the narrow dtypes that a float32 subject can be put in, as its users would."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

import torch

from kvfuzz.case.dtypes import NARROW
from kvfuzz.errors import UsageError, one_line
from kvfuzz.subjects.dtypes import compute_dtype, dtype_name
from kvfuzz.subjects.float64 import weights_of
from kvfuzz.subjects.native_dtype import Build, put
from kvfuzz.subjects.run import run_uncached, seeded
from kvfuzz.subjects.tensors import LARGE, floating_tensors


def find_narrow(
    build: Build, config: Mapping[str, Any], moved: bool
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Returns those of NARROW that the subjects of `build` can be put in; and why not in others, as
    remarks. `moved` says that their modules are cast, and not built in the dtype.

    Nothing is said of a subject that has no module to cast.
    """
    found, problems = [], dict[str, list[str]]()
    for dtype in NARROW:
        try:
            problem = _problem(build(0, dtype, config), dtype, moved)
        except UsageError:
            continue
        except (Exception, SystemExit) as error:
            problem = one_line(error)
        if problem is None:
            found.append(dtype)
        else:
            problems.setdefault(problem, []).append(dtype)
    remarks = (f"not run in {' or '.join(names)}: {why}" for why, names in problems.items())
    return tuple(found), tuple(remarks)


def _problem(subject: Any, dtype: str, moved: bool) -> str | None:
    """Returns why cases in `dtype` would say nothing of `subject`, None if they do."""
    if moved and any(t.dtype == torch.float32 for t in floating_tensors(subject, modules=True)):
        return "it keeps tensors that stay float32 when its module is cast"
    try:
        with seeded(0):
            logits = run_uncached(subject, ((0,),))
    except Exception as error:
        return f"the uncached path raised {one_line(error)}"
    computed = dtype_name(compute_dtype(logits.dtype, subject))
    if computed != dtype:
        return f"it computes in {computed}"
    return None if bool(logits.isfinite().any()) else "its logits are not finite"


def put_copy(subject: Any, name: str, dtype: str, device: str | None) -> Any:
    """Returns a copy of `subject` in a narrow `dtype`. Raises UsageError if it is too large to be
    copied, or has no module to cast."""
    if sum(weight.nbytes for weight in weights_of(subject)) > LARGE:
        raise UsageError(f"{name} is too large to be copied")
    return put(copy.deepcopy(subject), name, dtype, device)
