"""audiocraft: the rotary position is too small after a first call that fills the context.

repository: https://github.com/facebookresearch/audiocraft
commit: 896ec7c47f5e5d1e5aa1e4b260c4405328bf009d
file: audiocraft/modules/transformer.py
needs: einops; xformers is stubbed where it is missing: of it only `unbind` is used, that of torch
verdict: diverged

With `past_context` the streaming state drops old keys and counts in `offset` how many, so that new
keys get their position. The first call sets the counter to 0 whatever it dropped, so a prompt that
is longer than the context puts all later tokens at positions that are too small.
"""

import torch
from checkout import hunt, library, stub
from torch import nn

BARE = ["audiocraft", "audiocraft.modules"]
OPERATIONS = {
    "unbind": torch.unbind,
    "memory_efficient_attention": None,
    "LowerTriangularMask": object,
}


class Subject:
    """The streaming transformer between an embedding and a head of ours. A cache is its streaming
    state, which is set before each call and read after it."""

    vocab_size, max_length = 50, 64
    settings = {"past_context": 3, "custom": True}

    def __init__(self, seed=0):
        torch.manual_seed(seed)
        stub("xformers")
        stub("xformers.ops", **OPERATIONS)
        self.body = library("audiocraft.modules.transformer", bare=BARE).StreamingTransformer(
            d_model=32,
            num_heads=2,
            num_layers=2,
            dim_feedforward=48,
            dropout=0.0,
            causal=True,
            positional_embedding="rope",
            norm_first=True,
            **self.settings,
        )
        parts = {"embedding": nn.Embedding(50, 32), "body": self.body, "head": nn.Linear(32, 50)}
        self.model = nn.ModuleDict(parts).eval()

    def uncached(self, tokens):
        return self.model["head"](self.body(self.model["embedding"](tokens)))

    def new_cache(self, batch):
        return {}

    def cached(self, tokens, cache):
        with self.body.streaming():
            self.body.set_streaming_state(cache)
            return self.uncached(tokens), self.body.get_streaming_state()


if __name__ == "__main__":
    hunt(__file__)
