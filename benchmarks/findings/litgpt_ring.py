"""litgpt: a chunk of several tokens on a sliding window's ring of keys is attended wrongly.

repository: https://github.com/Lightning-AI/litgpt
commit: 26857050fe3ff627cd714fe92f5838f51a3d5efa
file: litgpt/model.py
needs: lightning
verdict: diverged

The ring holds the last W keys, each in the slot of its position modulo W. The mask of a chunk is
that of absolute positions, cut to its first W columns, so column i stands for position i and not
for the position in slot i. The chunk has also overwritten keys that its first tokens still need.
"""

import torch
from checkout import hunt, library


class Subject:
    """A window of 4 in both layers; the modules hold the cache."""

    vocab_size, max_length = 50, 32
    one_cache_at_a_time = True

    def __init__(self, seed=0):
        torch.manual_seed(seed)
        litgpt = library("litgpt.model", bare=["litgpt"])
        config = litgpt.Config(
            block_size=32,
            padded_vocab_size=50,
            n_layer=2,
            n_head=4,
            n_query_groups=2,
            n_embd=32,
            rotary_percentage=1.0,
            parallel_residual=False,
            bias=False,
            norm_class_name="RMSNorm",
            mlp_class_name="LLaMAMLP",
            intermediate_size=48,
            sliding_window_size=4,
        )
        self.model, self.position = litgpt.GPT(config).eval(), 0

    def uncached(self, tokens):
        return self.model(tokens)

    def new_cache(self, batch):
        self.model.set_kv_cache(batch)
        self.position = 0
        return self

    def cached(self, tokens, cache):
        if tokens.shape[1] > 4:
            raise NotImplementedError("the library refuses a chunk that is longer than the window")
        end = self.position + tokens.shape[1]
        logits = self.model(tokens, torch.arange(self.position, end))
        self.position = end
        return logits, self


if __name__ == "__main__":
    hunt(__file__)
