"""Broken causality: a later token changes earlier logits of the uncached path.

A prefix that runs alone has the right logits. Where a run over whole rows differs from that, the
reference runs every prefix alone, and the cached path agrees with it: only the law sees the fault.
"""

import torch

from mutants.mutant import mutant, steps

NEEDS = {"mix": ("uniform", "alternating", "shared_kv")}


@mutant(".uncached:_attention", law="causality", both=True, witness=steps(1, 1))
def last_layer_sees_the_next_token(real):
    """In the last layer of the uncached path, each token also attends to the next one."""

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
    """The uncached path mixes a tenth of the next position's logits into those of each position."""

    def logits(config, weights, tokens, note, sides):
        answer = real(config, weights, tokens, note, sides)
        after = torch.cat((answer[..., 1:, :], answer[..., -1:, :]), dim=-2)
        return 0.9 * answer + 0.1 * after

    return logits
