"""moshi: a call with several steps drops keys from the ring that its first steps still attend to.

repository: https://github.com/kyutai-labs/moshi
commit: e6a55d2722a65870ef52a6c9f6ecfc0e90f38362
file: moshi/moshi/modules/transformer.py
needs: einops
verdict: diverged

The ring has one slot for each step of the context, and a call writes all its steps before it
attends. Once the ring is full, n steps overwrite n old keys, of which the first step of the call
still needs n - 1. The mask knows the positions, so nothing wrong is read; keys are missing.
"""

import torch
from checkout import hunt, library
from torch import nn

BARE = ["moshi", "moshi.modules", "moshi.utils"]


class Subject:
    """The streaming transformer between an embedding and a head of ours, a context of 4. A cache is
    its streaming state, which is set before each call."""

    vocab_size, max_length = 50, 64

    def __init__(self, seed=0):
        torch.manual_seed(seed)
        self.body = library("moshi.modules.transformer", "moshi", BARE).StreamingTransformer(
            d_model=32,
            num_heads=2,
            num_layers=2,
            dim_feedforward=48,
            causal=True,
            context=4,
            positional_embedding="rope",
        )
        parts = {"embedding": nn.Embedding(50, 32), "body": self.body, "head": nn.Linear(32, 50)}
        self.model = nn.ModuleDict(parts).eval()

    def uncached(self, tokens):
        return self.model["head"](self.body(self.model["embedding"](tokens)))

    def new_cache(self, batch):
        with self.body.streaming(batch):
            return self.body.get_streaming_state()

    def cached(self, tokens, cache):
        with self.body.streaming(len(tokens)):
            self.body.set_streaming_state(dict(cache))
            return self.uncached(tokens), cache


if __name__ == "__main__":
    hunt(__file__)
