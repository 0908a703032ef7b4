"""Cases for subjects of transformers, and how far their paths are apart."""

from __future__ import annotations

import random
from typing import Any

import torch

from kvfuzz.case.case import Case
from kvfuzz.subjects.run import run_cached, run_uncached
from kvfuzz.subjects.transformers.tiny import WINDOW

ALLOWED = 256  # times eps and the largest logit of the row


def cases(made: Any, count: int, **config: Any) -> list[Case]:
    """`count` cases, the same every time: rows past the window, mixed chunks, changing seeds."""
    draw = random.Random(7)
    drawn = []
    for index in range(count):
        batch, length = draw.randint(1, 3), draw.randint(WINDOW + 2, 16)
        sizes: list[int] = []
        while sum(sizes) < length:
            sizes.append(draw.choice((1, 1, 2, 3, 7)))
        sizes[-1] -= sum(sizes) - length
        drawn.append(
            Case(
                tuple(tuple(draw.randrange(64) for _ in range(length)) for _ in range(batch)),
                tuple(sizes),
                seed=draw.randrange(2**32),
                dtype=made.dtypes[index % len(made.dtypes)],
                config={**made.first_config(), **config},
            )
        )
    return drawn


def excess(made: Any, case: Case) -> float:
    """The largest difference of the two paths, in multiples of what is allowed."""
    subject = made.subject(case)
    uncached = run_uncached(subject, case.tokens)
    difference = (run_cached(subject, case) - uncached).abs().amax(-1)
    scale = torch.finfo(uncached.dtype).eps * uncached.abs().amax(-1)
    return float((difference / (ALLOWED * scale)).max())


def uncached(subject: Any, length: int = 8) -> torch.Tensor:
    """Logits [2, length, vocab] of two fixed rows."""
    rows = [[(7 * row + 5 * at) % 64 for at in range(length)] for row in range(2)]
    return run_uncached(subject, rows)
