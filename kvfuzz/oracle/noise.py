"""Measure the noise of a case: how far rounding moves what the uncached path computes.

The weights of the float64 twin, and the embedded tokens, are perturbed by a unit roundoff of the
dtype, up or down at random, DRAWS times: that samples the condition number by which rounding is
amplified, whatever the kernels (the idea of Monte Carlo arithmetic, arXiv 1509.01347). What the
perturbation does not see, islands of lower precision and subnormal numbers, is in the distance of
the uncached path to its twin. The noise of a position is the larger of both.

Nothing here runs the cached path: a fault there cannot widen its own tolerance.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from kvfuzz.errors import KvfuzzError
from kvfuzz.oracle.tolerance import outliers
from kvfuzz.subjects.dtypes import ROUNDOFF
from kvfuzz.subjects.float64 import perturbing, promoted, twin_of
from kvfuzz.subjects.protocol import Subject
from kvfuzz.subjects.run import Rows, as_tensor, run_uncached, seeded

DRAWS = 4
# Half an ulp up leaves a float64 where it is (ties go to even), so float64 is moved by a whole one.
LEAST_STEP = 2.0**-52


def logits_noise(subject: Subject, tokens: Rows, uncached: Tensor, dtype: torch.dtype) -> Tensor:
    """The noise [batch, time] of the `uncached` logits [batch, time, vocab] of `tokens` when
    computed in `dtype`. Raises Unmeasurable.

    A subject that can run several sets of weights at once (`perturbed`) does so.
    """
    if callable(getattr(subject, "perturbed", None)):
        exact = uncached.dtype == torch.float64
        draws = (*range(DRAWS),) if exact else (None, *range(DRAWS))
        run: Any = subject.perturbed  # type: ignore[attr-defined]
        moved = _called(lambda: run(as_tensor(subject, tokens), step(dtype), draws))
        return _noise(uncached, uncached, moved) if exact else _noise(uncached, moved[0], moved[1:])
    return states_noise(subject, lambda: [run_uncached(subject, tokens)], [uncached], dtype)[0]


def states_noise(
    subject: Subject, run: Callable[[], list[Tensor]], found: Sequence[Tensor], dtype: torch.dtype
) -> list[Tensor]:
    """The noise [batch, time] of each of the states [batch, time, features] that `run` gives, and
    gave when they were `found`. Raises Unmeasurable."""
    twin = twin_of(subject)
    if not twin.weights:
        raise Unmeasurable("it holds no tensors to perturb")

    def alike(run: Callable[[], list[Tensor]]) -> list[Tensor]:
        """`run`, with the random numbers that it had before: dropout left on is no rounding."""
        with seeded(torch.random.initial_seed() % 2**63):
            return run()

    def runs() -> list[list[Tensor]]:
        truth, promoting = list(found), False  # a subject in the float64 lane promotes itself
        if not twin.always:
            with twin.running() as promotion:
                truth = alike(run)
            # Where nothing asks for float32, nothing needs to be promoted, which takes its time.
            promoting = promotion.needed
        moved = []
        with twin.running(promoting=False), perturbing(twin.weights) as perturb:
            for draw in range(DRAWS):
                perturb(step(dtype), draw)
                with promoted(promoting, twin.native):
                    moved.append(alike(run))
        return [truth, *moved]

    truth, *others = _called(runs)
    if any(state.dtype != torch.float64 for state in truth):
        raise Unmeasurable("it does not compute in float64")
    # Nothing moved, neither by the perturbations nor by computing in float64.
    if not any(map(_moved, zip(truth, found, *others, strict=True))):
        raise Unmeasurable("its logits do not depend on the tensors that it holds")
    return [
        _noise(state, true, torch.stack(moved))
        for state, true, *moved in zip(found, truth, *others, strict=True)
    ]


class Unmeasurable(Exception):
    """The noise of a subject cannot be measured, for the reason that this says."""


def step(dtype: torch.dtype) -> float:
    """The relative perturbation of the weights for `dtype`."""
    return max(ROUNDOFF[dtype], LEAST_STEP)


def _called(action: Callable[[], Any]) -> Any:
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
    """The largest distance from the `truth` of what was `found`, and of the perturbed `others`
    [draws, ...], at each position [batch, time]. Outliers have their own scale, and do not
    count."""
    runs = others if found is truth else torch.cat((found.double()[None], others))
    distances = (runs - truth).abs()
    noise = distances.amax((0, -1))
    ignored = outliers(found)
    if bool(noise.isfinite().all()) and not bool(ignored.any()):
        return noise
    # Equal infinities are at no distance; what has none is as far as can be.
    distances = distances.masked_fill((runs == truth) | ignored, 0.0)
    return distances.masked_fill(distances.isnan(), torch.inf).amax((0, -1))
