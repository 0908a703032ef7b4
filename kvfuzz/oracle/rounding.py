"""Measures how far the rounding of a lossy cache moves the logits.

A subject declares the dtype that its cache rounds to (`cache_dtype`). Which entries it rounds, in
groups of which size, only its own code knows. So that code is run: the cached path, with each entry
moved by one step of the dtype as it is cast. A correct rounding moves an entry by half a step at
most, and one that is read under a wrong scale moves by many.

A fault of the cached path that makes it more sensitive to its cache widens this noise. So it only
counts where it is smaller than what the same rounding does to all weights of the uncached path
(`kvfuzz.oracle.reference`).
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from kvfuzz.case.case import Case
from kvfuzz.oracle.noise import DRAWS
from kvfuzz.subjects.call_limits import call_limits_of
from kvfuzz.subjects.precision import move_casts
from kvfuzz.subjects.protocol import Subject
from kvfuzz.subjects.run import Rows, run_cached, seeded

STEPS = 4
"""How much smaller than a move by one step, up or down, the error of a rounding is: its standard
deviation is a step over the square root of 12."""


def rounding_noise(subject: Subject, rows: Rows, case: Case, dtype: torch.dtype) -> Tensor | None:
    """Returns how far a rounding of cache entries to `dtype` moves the logits of `rows` [batch,
    time], as noise [batch, time]: fed in one call, or in calls that double the cache, whichever
    moves them more. (Some caches round what they keep, but not what the same call reads.)

    None if it cannot be measured: the cached path raises, or never casts to `dtype`.
    """
    tokens = tuple(map(tuple, rows))
    length = len(tokens[0])
    found = []
    calls = call_limits_of(subject)
    # Where a call returns its last logits alone, only single tokens show all positions.
    single = {(1,) * length} if calls.last_only else set()
    for sizes in {calls.divided(one) for one in ((length,), _doubling(length))} | single:
        fed = replace(case, tokens=tokens, schedule=sizes, given=(), keep=None)
        moved = _moved_by_rounding(subject, fed, dtype)
        if moved is None:
            return None
        found.append(moved)
    return torch.stack(found).amax(0) / STEPS


def _doubling(length: int) -> tuple[int, ...]:
    """Returns the sizes of calls that feed `length` tokens: one, and then each time as many as are
    held, so that a token reads at least half of the earlier ones from the cache."""
    sizes = [1]
    while sum(sizes) < length:
        sizes.append(min(sum(sizes), length - sum(sizes)))
    return tuple(sizes)


def _run(subject: Subject, case: Case) -> Tensor:
    """Runs the cached path with the same random numbers each time."""
    with seeded(case.seed):
        return run_cached(subject, case).double()


def _moved_by_rounding(subject: Subject, case: Case, dtype: torch.dtype) -> Tensor | None:
    """Returns how far the logits of `case` move if all casts to `dtype` are moved by one step."""
    runs: list[Tensor] = []
    try:
        exact = _run(subject, case)
        for draw in range(DRAWS):
            if not move_casts(lambda: runs.append(_run(subject, case)), dtype, draw):
                return None
    except Exception:
        return None  # the verdict on the case says what is wrong with the path
    moved = (torch.stack(runs) - exact).abs().amax((0, -1))
    return moved.nan_to_num(nan=torch.inf)
