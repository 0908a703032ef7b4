"""What a cache holds is not what was computed: keys and values of its layers."""

from __future__ import annotations

import torch
from torch import Tensor

from mutants.anywhere.kinds import contents
from mutants.anywhere.stored import Stored

LACKS = "its view shows no keys and values that can be written to"
ADVICE = "feed a filled cache: two calls or more"
TOLD = {"offers": ("view",), "lacks": LACKS, "advice": ADVICE}


@contents(**TOLD)
def oldest_is_nought(held: Stored) -> None:
    """The oldest entry of every layer is overwritten with noughts after each call."""
    for keys, values in held.layers:
        keys[:, :, 0], values[:, :, 0] = 0, 0
