"""gpt-fast: the cache of preallocated buffers agrees.

repository: https://github.com/pytorch-labs/gpt-fast
commit: 32971d3129541c5bfb4f715abc33d1c5f408d204
file: model.py
needs: nothing
verdict: agreed

The model has no path without its cache. The uncached logits are those of one call with the whole
text, which overwrites the slots that it reads.
"""

import torch
from checkout import hunt, library


class Subject:
    """Grouped heads; the modules hold the cache."""

    vocab_size, max_length = 50, 32
    one_cache_at_a_time = True

    def __init__(self, seed=0):
        torch.manual_seed(seed)
        module = library("model")
        config = module.ModelArgs(
            block_size=32,
            vocab_size=50,
            n_layer=2,
            n_head=4,
            n_local_heads=2,
            dim=32,
            intermediate_size=48,
        )
        self.model, self.position = module.Transformer(config).eval(), 0

    def uncached(self, tokens):
        if self.model.max_batch_size != len(tokens):
            self.new_cache(len(tokens))
        return self.model(tokens, torch.arange(tokens.shape[1]))

    def new_cache(self, batch):
        self.model.max_batch_size = -1  # else the buffers are kept, whatever their batch
        self.model.setup_caches(batch, 32)
        self.position = 0
        return self

    def cached(self, tokens, cache):
        start, self.position = self.position, self.position + tokens.shape[1]
        return self.model(tokens, torch.arange(start, self.position)), self


if __name__ == "__main__":
    hunt(__file__)
