"""LLMs-from-scratch: the position is kept on the model, so that two caches share it.

repository: https://github.com/rasbt/LLMs-from-scratch
commit: 28c65cdfbc3338e2e040016eea4b7fdf556e4d57
file: pkg/llms_from_scratch/kv_cache/qwen3.py
needs: tiktoken, requests
verdict: diverged

`forward` takes a cache object, but reads the position from `model.current_pos`, which
`reset_kv_cache` sets to 0. A second cache moves the position of the first. `llama3.py` beside it
does the same.
"""

import torch
from checkout import hunt, library

SIZES = {
    "vocab_size": 50,
    "context_length": 64,
    "emb_dim": 32,
    "n_heads": 4,
    "n_layers": 2,
    "hidden_dim": 48,
    "head_dim": 8,
    "qk_norm": True,
    "n_kv_groups": 2,
    "rope_base": 10000.0,
    "rope_freq": None,
    "dtype": torch.float32,
}
CLASSES = {"qwen3": "Qwen3Model", "llama3": "Llama3Model"}


class Subject:
    """As `generate_text_simple` does, a new cache resets the position."""

    vocab_size, max_length = 50, 64
    choices = {"file": ("qwen3", "llama3")}

    def __init__(self, seed=0, file="qwen3"):
        torch.manual_seed(seed)
        package = "llms_from_scratch.kv_cache"
        self.new = library(f"{package}.utils", "pkg").KVCache
        self.model = getattr(library(f"{package}.{file}", "pkg"), CLASSES[file])(SIZES).eval()

    def uncached(self, tokens):
        return self.model(tokens)

    def new_cache(self, batch):
        self.model.reset_kv_cache()
        return self.new(n_layers=2)

    def cached(self, tokens, cache):
        return self.model(tokens, cache=cache), cache


if __name__ == "__main__":
    hunt(__file__)
