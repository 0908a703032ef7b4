"""mamba.py: the recurrent step of Mamba agrees with its parallel scan.

repository: https://github.com/alxndrTL/mamba.py
commit: 2cc168c78b2494557f45072c4b8daa9d6f5608c7
file: mambapy/mamba.py
needs: nothing
verdict: agreed

Two implementations of the same layer: `forward` scans the whole text in parallel, `step` takes one
token and the state. A chunk is fed token by token, as `generate` does with a prompt.
"""

import torch
from checkout import hunt, library


class Subject:
    """Two layers of Mamba. A cache is the library's list of pairs, the state and the last inputs of
    the convolution."""

    vocab_size, max_length = 50, 32

    def __init__(self, seed=0):
        torch.manual_seed(seed)
        mamba = library("mambapy.mamba")
        self.config = mamba.MambaConfig(d_model=32, n_layers=2, d_state=4)
        parts = {"embedding": torch.nn.Embedding(50, 32), "body": mamba.Mamba(self.config)}
        self.model = torch.nn.ModuleDict(parts | {"head": torch.nn.Linear(32, 50)}).eval()

    def uncached(self, tokens):
        return self.model["head"](self.model["body"](self.model["embedding"](tokens)))

    def new_cache(self, batch):
        shape = (batch, self.config.d_inner, self.config.d_conv - 1)
        like = self.model["head"].weight
        return [(None, torch.zeros(shape, dtype=like.dtype)) for _ in range(2)]

    def cached(self, tokens, cache):
        outputs = []
        for token in self.model["embedding"](tokens).unbind(1):
            output, cache = self.model["body"].step(token, list(cache))
            outputs.append(self.model["head"](output))
        return torch.stack(outputs, 1), cache


if __name__ == "__main__":
    hunt(__file__)
