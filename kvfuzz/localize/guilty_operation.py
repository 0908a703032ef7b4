"""Tells whether an operation on a cache is to blame, by running the case without it.

A crop, a reorder or a restore should leave the cache as if its tokens had been fed to a new one. So
the same tokens are fed in the same calls without the operation. If the logits are right then, and
wrong with it, the operation has left a wrong cache. If they are wrong all the same, it has not.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

from kvfuzz.case.case import Case, Step
from kvfuzz.case.layout import real_tokens
from kvfuzz.case.schedule import FEEDING, Crop, Fork, Join, New, Reset, Rollback, Switch
from kvfuzz.localize.location import Line
from kvfuzz.localize.operations.reference_runs import logits_agree
from kvfuzz.localize.operations.source_lines import line_of_function
from kvfuzz.subjects.float64 import unwrapped
from kvfuzz.subjects.protocol import Subject
from kvfuzz.subjects.run import CachedPathRaised, Refused, compared, run_cached, run_uncached

_METHODS = {"restore": "load", "fork": "copy", "select": "reorder", "repeat": "reorder"}


@dataclass(frozen=True)
class GuiltyOperation:
    """The `step` whose operation leaves a wrong cache, and the first `line` of the method of the
    subject that is called for it, None if its source is not known."""

    step: Step
    line: Line | None

    @property
    def kind(self) -> str:
        return self.step.kind

    @property
    def method(self) -> str:
        """The name of the method that is called for it."""
        return _METHODS.get(self.kind, self.kind)


def find_guilty_operation(subject: Subject, case: Case, last: int) -> GuiltyOperation | None:
    """Returns the last operation before step number `last`, which goes wrong, if the step is right
    without any. None where it is not; for padded rows, whose calls without the operation are
    others; and where there is a second cache, which may be to blame as well."""
    steps = [step for step in case.steps() if step.index <= last]
    guilty = _last_operation(steps)
    plain = without_operations(case, steps) if guilty else None
    if guilty is None or plain is None:
        return None
    with suppress(CachedPathRaised, Refused):
        right = run_uncached(subject, plain.tokens)
        if logits_agree(run_cached(subject, plain), right, subject, compared(subject, plain)):
            return GuiltyOperation(guilty, _line_of(subject, guilty))
    return None


def _last_operation(steps: Sequence[Step]) -> Step | None:
    """Returns the last step that changed the cache of the last one without feeding it."""
    cache = steps[-1].cache
    for step in reversed(steps):
        if step.cache == cache and not step.feeds and not isinstance(step.operation, Switch):
            return step
    return None


def without_operations(case: Case, steps: Sequence[Step]) -> Case | None:
    """Returns the tokens of the last of `steps` in the calls that fed them, on one new cache."""
    calls: dict[int, list[int]] = {}
    for step in steps:
        if isinstance(step.operation, FEEDING | New | Rollback | Join):
            return None
        own = calls.setdefault(step.cache, [])
        if step.feeds:
            own.append(step.size)
        elif isinstance(step.operation, Fork):
            calls[step.cache] = list(calls.get(step.source or 0, ()))
        elif isinstance(step.operation, Reset):
            own.clear()
        elif isinstance(step.operation, Crop):
            calls[step.cache] = _first_of(own, sum(own) - step.operation.count)
    rows = tuple(real_tokens(row) for row in steps[-1].after)
    sizes = tuple(calls[steps[-1].cache])
    if not steps[-1].feeds or {len(row) for row in rows} != {sum(sizes)}:
        return None
    return replace(case, tokens=rows, schedule=sizes)


def _first_of(sizes: Iterable[int], total: int) -> list[int]:
    """Returns the first of the calls of these `sizes` that feed `total` tokens."""
    found: list[int] = []
    for size in sizes:
        if (kept := min(size, total - sum(found))) > 0:
            found.append(kept)
    return found


def _line_of(subject: Any, step: Step) -> Line | None:
    """Returns the first line of the method that the operation of `step` calls."""
    method = getattr(unwrapped(subject), _METHODS.get(step.kind, step.kind), None)
    return line_of_function(method)
