"""Vacuous agreement: both paths say the same, since neither needs what the cache holds."""

import torch

from mutants.mutant import VACUITY, mutant, steps

NEEDS = {"cache": ("concatenated",), "mix": ("uniform", "alternating")}


@mutant(".maths:attend", law=VACUITY, both=True, witness=steps(2, 1))
def attention_adds_nothing(real):
    """What attention gives is thrown away, in both paths."""
    return lambda *args: torch.zeros_like(real(*args))


@mutant(".maths:attend", law=VACUITY, both=True, witness=steps(2, 1))
def each_token_sees_itself_alone(real):
    """Of all that it may attend to a token takes the last, which is itself."""

    def attend(query, key, value, visible, bias):
        last = visible & (visible.flip(-1).int().cumsum(-1).flip(-1) == 1)
        return real(query, key, value, last, bias)

    return attend
