"""Measures the noise of a case: how far rounding moves the results of the uncached path.

The weights of the float64 twin, and the embedded tokens, are perturbed by a unit roundoff of the
dtype, up or down at random, DRAWS times. That samples the condition number by which rounding is
amplified, whatever the kernels do (the idea of Monte Carlo arithmetic, arXiv 1509.01347).
Perturbations miss islands of lower precision and subnormal numbers; the distance of the uncached
path from its twin shows those. The noise of a position is the larger of the two.

Nothing here runs the cached path: a fault there cannot widen its own tolerance.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from typing import Any

import torch
from torch import Tensor

from kvfuzz.errors import KvfuzzError
from kvfuzz.oracle.tolerance import outliers
from kvfuzz.subjects.dtypes import ROUNDOFF
from kvfuzz.subjects.float64 import Twin, promoted, twin_of
from kvfuzz.subjects.perturb import perturbing
from kvfuzz.subjects.protocol import Subject
from kvfuzz.subjects.run import Rows, as_tensor, in_calls, note_pass, run_uncached, seeded
from kvfuzz.subjects.sides import sides_of

DRAWS = 4
# Adding half an ulp may not change a float64 (ties round to even): its step is a whole ulp.
LEAST_STEP = 2.0**-52


def logits_noise(subject: Subject, tokens: Rows, uncached: Tensor, dtype: torch.dtype) -> Tensor:
    """Returns the noise [batch, time] of the `uncached` logits [batch, time, vocab] of `tokens`
    [batch, time], for computation in `dtype`. Raises Unmeasurable.

    Uses the `perturbed` of a subject that has it: it runs all draws at once.
    """
    if callable(getattr(subject, "perturbed", None)):
        # In float64 the uncached logits are the twin's own, and need not be computed again.
        exact = uncached.dtype == torch.float64
        draws = (*range(DRAWS),) if exact else (None, *range(DRAWS))
        run: Any = subject.perturbed  # type: ignore[attr-defined]
        note_pass()
        parts = in_calls(subject, tokens)
        size = perturbation(dtype)

        def perturbed(part: Rows) -> Tensor:
            rows = as_tensor(subject, part)
            found: Tensor = run(rows, size, draws, **sides_of(subject, part, rows.device))
            return found

        moved = _attempt(lambda: torch.cat([perturbed(part) for part in parts], dim=1))
        return _noise(uncached, uncached, moved) if exact else _noise(uncached, moved[0], moved[1:])
    return states_noise(subject, lambda: [run_uncached(subject, tokens)], [uncached], dtype)[0]


def states_noise(
    subject: Subject, run: Callable[[], list[Tensor]], found: Sequence[Tensor], dtype: torch.dtype
) -> list[Tensor]:
    """Returns the noise [batch, time] of each state [batch, time, features] that `run` returns.
    `found` are the states of its run outside the twin. Raises Unmeasurable."""
    twin = twin_of(subject)
    if not twin.weights:
        raise Unmeasurable("it holds no tensors to perturb")
    try:
        truth, *others = _attempt(lambda: _run_twin(twin, run, found, perturbation(dtype)))
    finally:
        twin.forget()
    if twin.exact and any(state.dtype != torch.float64 for state in truth):
        raise Unmeasurable("it does not compute in float64")
    # If neither the perturbations nor float64 change a bit, the tensors found are not the weights.
    if not any(map(_moved, zip(truth, found, *others, strict=True))):
        raise Unmeasurable("its logits do not depend on the tensors that it holds")
    if not twin.exact:
        truth = found = [state.double() for state in found]
    return [
        _noise(state, true, torch.stack(moved).double())
        for state, true, *moved in zip(found, truth, *others, strict=True)
    ]


def _run_twin(
    twin: Twin, run: Callable[[], list[Tensor]], found: Sequence[Tensor], size: float
) -> list[list[Tensor]]:
    """Returns the states of `run` in the twin, then those of DRAWS runs with its weights perturbed
    by a relative `size`. A Float64Subject always runs in its twin, so its states were `found`; so
    are those of a TwinlessSubject."""

    def run_alike() -> list[Tensor]:
        """Runs with the same random numbers each time: dropout that is left on is not rounding."""
        with seeded(torch.random.initial_seed() % 2**63):
            return run()

    truth, promoting = list(found), False  # a Float64Subject promotes its own calls
    if twin.exact and not twin.always:
        with twin.running() as promotion:
            truth = run_alike()
        # Promotion slows every torch call: the draws go without it if this run did not need it.
        promoting = promotion.needed
    moved = []
    # Promotion is entered for each draw, and not around `perturb`, which it would slow down too.
    with twin.running(promoting=False), perturbing(twin.weights, twin.values) as perturb:
        for draw in range(DRAWS):
            perturb(size, draw)
            with promoted(promoting, twin.native) if twin.exact else nullcontext():
                moved.append(run_alike())
    return [truth, *moved]


class Unmeasurable(Exception):
    """The noise of a subject cannot be measured; the message says why."""


def perturbation(dtype: torch.dtype) -> float:
    """Returns the relative perturbation of the weights for `dtype`."""
    return max(ROUNDOFF[dtype], LEAST_STEP)


def _attempt(action: Callable[[], Any]) -> Any:
    """Runs `action`; raises Unmeasurable if the subject raises in float64."""
    try:
        with torch.no_grad():
            return action()
    except KvfuzzError:
        raise
    except Exception as error:
        raise Unmeasurable(f"it does not run in float64: {type(error).__name__}") from error


def _moved(states: Sequence[Tensor]) -> bool:
    truth, *others = states
    return any(not torch.equal(other, truth) for other in others)


def _noise(found: Tensor, truth: Tensor, others: Tensor) -> Tensor:
    """Returns, for each position [batch, time], the largest distance from the `truth` of what was
    `found` and of the perturbed `others` [draws, ...]. Outliers do not count: they have a scale of
    their own."""
    runs = others if found is truth else torch.cat((found.double()[None], others))
    distances = (runs - truth).abs()
    noise = distances.amax((0, -1))
    ignored = outliers(found)
    if bool(noise.isfinite().all()) and not bool(ignored.any()):
        return noise
    # inf - inf is NaN: equal infinities are at distance 0, any other NaN counts as infinitely far.
    distances = distances.masked_fill((runs == truth) | ignored, 0.0)
    return distances.masked_fill(distances.isnan(), torch.inf).amax((0, -1))
