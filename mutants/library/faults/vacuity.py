"""Vacuous agreement: both paths agree, since neither reads the cache."""

import torch

from mutants.mutant import VACUITY, mutant, steps

NEEDS = {"cache": ("concatenated",), "mix": ("uniform", "alternating")}


@mutant(".maths:attend", law=VACUITY, both=True, witness=steps(2, 1))
def attention_adds_nothing(real):
    """Attention returns zeros, in both paths."""
    return lambda *args: torch.zeros_like(real(*args))


@mutant(".maths:attend", law=VACUITY, both=True, witness=steps(2, 1))
def each_token_sees_itself_alone(real):
    """Each token attends only to itself, in both paths."""

    def attend(query, key, value, visible, bias):
        last = visible & (visible.flip(-1).int().cumsum(-1).flip(-1) == 1)
        return real(query, key, value, last, bias)

    return attend
