"""Broken repeatability: the same case gives different bits when it runs again."""

import torch

from mutants.mutant import mutant, steps


@mutant("store", law="repeatability", witness=steps(2, 1))
def rounds_at_random(real):
    """The last bit of stored keys and values is random."""

    def noisy(x):
        up = torch.full_like(x, torch.inf)
        return torch.where(torch.rand_like(x) < 0.5, x, torch.nextafter(x, up))

    return lambda cache, layer, key, value: real(cache, layer, noisy(key), noisy(value))


@mutant(
    ".uncached:logits",
    "logits",
    law="repeatability",
    both=True,
    witness=steps(1, 1),
    seen_in="huggingface/transformers#36013",
)
def keeps_a_number_of_an_earlier_request(uncached, cached):
    """The model keeps a scale from the first token of its last uncached run, and cached calls use
    it."""
    scale = 1.0

    def whole(config, weights, tokens, note, sides):
        nonlocal scale
        scale = 1 + int(tokens[0, 0]) / 1024
        return scale * uncached(config, weights, tokens, note, sides)

    return whole, lambda *args: scale * cached(*args)


@mutant("readout", law="repeatability", both=True, witness=steps(1, 1))
def drifts_with_every_call(real):
    """Logits grow by one rounding step with every call, and start over after seven calls."""
    calls = 0

    def readout(weights, x):
        nonlocal calls
        calls += 1
        answer = real(weights, x)
        return answer * (1 + calls % 7 * torch.finfo(answer.dtype).eps)

    return readout
