"""Broken causality: what comes later changes what was said before, in the uncached path.

An uncached run over a prefix alone is right, and the cached path is held to that: they agree.
"""

import torch

from mutants.mutant import mutant, steps

NEEDS = {"mix": ("uniform", "alternating", "shared_kv")}


@mutant(".uncached:_attention", law="causality", both=True, witness=steps(1, 1))
def last_layer_sees_the_next_token(real):
    """In the last layer of a whole run each token attends to the one after it."""

    def attention(config, number, layer, normed, geometry, given, note):
        if number == config.layers - 1:
            seen = {
                window: visible | torch.ones_like(visible).triu(1).tril(1)
                for window, visible in geometry.visible.items()
            }
            geometry = geometry._replace(visible=seen)
        return real(config, number, layer, normed, geometry, given, note)

    return attention


@mutant(".uncached:logits", law="causality", both=True, witness=steps(1, 1))
def readout_takes_in_the_next_token(real):
    """Each position of a whole run has a tenth of the logits of the position after it."""

    def logits(config, weights, tokens, note):
        answer = real(config, weights, tokens, note)
        after = torch.cat((answer[..., 1:, :], answer[..., -1:, :]), dim=-2)
        return 0.9 * answer + 0.1 * after

    return logits
