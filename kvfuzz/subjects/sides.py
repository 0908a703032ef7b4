"""Side inputs: what a row is given besides its tokens, such as encoder states or an adapter.

A subject declares how many it has, `side_inputs = N`, and both paths take `sides`, the number of
the side input of each row. That is the first token of the row, modulo N: so the text of a row says
which side input belongs to it, and a row that begins anew may get another one.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

import torch
from torch import Tensor

from kvfuzz.errors import InvalidSubject

SIDE_INPUTS = "side_inputs"
"""The attribute of a subject that says how many side inputs it has."""
SIDES = "sides"
"""The argument of both paths that gets the number of the side input of each row."""


def sides_of(
    subject: Any, rows: Sequence[Sequence[int]], device: torch.device
) -> dict[str, Tensor]:
    """Returns the argument `sides`, int64 [batch], for `rows` of text; 0 for a row without text.
    Empty if `subject` has no side inputs."""
    count = getattr(subject, SIDE_INPUTS, None)
    if count is None:
        return {}
    return {SIDES: torch.tensor([int(r[0]) % count if len(r) else 0 for r in rows], device=device)}


def require_sides(subject: Any, name: str, taken: Collection[str], cached: Collection[str]) -> None:
    """Raises InvalidSubject if `subject` declares side inputs that make no sense, or that one of
    its paths does not take; the arguments of the uncached path are `taken`."""
    count = getattr(subject, SIDE_INPUTS, None)
    if count is None:
        return
    if type(count) is not int or count < 1:
        raise InvalidSubject(f"{name}.{SIDE_INPUTS} should be a positive integer, got {count!r}")
    for path, words in (("uncached", taken), ("cached", cached)):
        if SIDES not in words:
            raise InvalidSubject(
                f"{name} declares {SIDE_INPUTS}, so {path}() should take an argument {SIDES}=None"
            )
