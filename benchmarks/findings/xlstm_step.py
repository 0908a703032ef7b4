"""xlstm: the recurrent step of mLSTM differs from the parallel form by its epsilon, about 1e-7.

repository: https://github.com/NX-AI/xlstm
commit: 032a6fb8ee19a8c0db80ae6111ff4744a09414a9
file: xlstm/xlstm_lm_model.py
needs: dacite, omegaconf, einops
verdict: diverged

`forward` computes mLSTM over the whole text at once, `step` takes one token and the state. Both add
1e-6 to a denominator that is scaled by a running maximum. `step` starts it at 0, `forward` at the
first gate, so the 1e-6 weighs differently. Float64 shows it, float32 agrees. A chunk is fed
token by token.
"""

import torch
from checkout import hunt, library

BARE = ["xlstm"]


class Subject:
    """One block of each kind, the sLSTM with its backend in torch."""

    vocab_size, max_length = 50, 32

    def __init__(self, seed=0):
        torch.manual_seed(seed)
        parts = library("xlstm.xlstm_lm_model", bare=BARE)
        mlstm = library("xlstm.blocks.mlstm.block", bare=BARE)
        slstm = library("xlstm.blocks.slstm.block", bare=BARE)
        layer = library("xlstm.blocks.slstm.layer", bare=BARE).sLSTMLayerConfig
        config = parts.xLSTMLMModelConfig(
            vocab_size=50,
            embedding_dim=32,
            num_blocks=2,
            context_length=32,
            slstm_at=[1],
            mlstm_block=mlstm.mLSTMBlockConfig(),
            slstm_block=slstm.sLSTMBlockConfig(slstm=layer(backend="vanilla")),
        )
        self.model = parts.xLSTMLMModel(config).eval()
        for parameter in self.model.parameters():
            torch.nn.init.normal_(parameter, std=0.3)

    def uncached(self, tokens):
        return self.model(tokens)

    def new_cache(self, batch):
        return {}

    def cached(self, tokens, cache):
        outputs = []
        for token in tokens.split(1, 1):
            logits, cache = self.model.step(token, dict(cache))
            outputs.append(logits)
        return torch.cat(outputs, 1), cache


if __name__ == "__main__":
    hunt(__file__)
