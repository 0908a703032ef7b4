"""The only file that touches private names of Hypothesis.

There is no public setting for either. A custom backend (`settings(backend=...)`) would draw without
constants and mutations, but Hypothesis then neither avoids duplicate cases nor climbs a target.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager

from hypothesis.internal.conjecture.engine import ConjectureRunner
from hypothesis.internal.conjecture.providers import HypothesisProvider

PATCHED = (
    # Mixes in constants found in the modules that happen to be loaded, those of the subject among
    # them: a worker process would draw other cases than its parent.
    (HypothesisProvider, "_maybe_draw_constant"),
    # Follows each case by variations of it: a run of 200 cases then missed whole families of
    # schedules.
    (ConjectureRunner, "generate_mutations_from"),
)


@contextmanager
def independent_draws() -> Iterator[None]:
    """Inside, Hypothesis draws each case independently of the others, and the same cases for the
    same seed in every process."""
    real = [(owner, name, getattr(owner, name)) for owner, name in PATCHED if hasattr(owner, name)]
    for owner, name in PATCHED:
        if not hasattr(owner, name):
            warnings.warn(
                f"this release of Hypothesis has no {owner.__name__}.{name}: a seed may draw other "
                "cases than with other releases",
                stacklevel=3,
            )
    try:
        for owner, name, _ in real:
            setattr(owner, name, lambda *_args, **_kwargs: None)
        yield
    finally:
        for owner, name, method in real:
            setattr(owner, name, method)
