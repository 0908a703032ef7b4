"""LLMs-from-scratch: the optimised cache is float32 whatever the model is, and a call raises.

repository: https://github.com/rasbt/LLMs-from-scratch
commit: 28c65cdfbc3338e2e040016eea4b7fdf556e4d57
file: ch04/03_kv-cache/gpt_with_kv_cache_optimized.py
needs: tiktoken
verdict: diverged

The buffers of the cache are made with the device of the input and without its dtype. In a model in
bfloat16 the queries then cannot be multiplied by the cached keys.
"""

import torch
from checkout import hunt, library

SIZES = {
    "vocab_size": 50,
    "context_length": 64,
    "emb_dim": 32,
    "n_heads": 2,
    "n_layers": 2,
    "drop_rate": 0.0,
    "qkv_bias": False,
}


class Subject:
    """The model in bfloat16, its modules hold the cache."""

    vocab_size, max_length = 50, 64
    one_cache_at_a_time = True

    def __init__(self, seed=0, dtype=torch.bfloat16):
        torch.manual_seed(seed)
        module = library("gpt_with_kv_cache_optimized", "ch04/03_kv-cache")
        self.model = module.GPTModel(SIZES).to(dtype).eval()

    def uncached(self, tokens):
        return self.model(tokens)

    def new_cache(self, batch):
        self.model.reset_kv_cache()
        return self

    def cached(self, tokens, cache):
        return self.model(tokens, use_cache=True), self


if __name__ == "__main__":
    hunt(__file__)
