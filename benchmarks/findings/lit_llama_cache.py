"""lit-llama: the cache on the model agrees, up to its length.

repository: https://github.com/Lightning-AI/lit-llama
commit: 2a464de2a1d2f266614d15091d3d7f30330c3ede
file: lit_llama/model.py
needs: lightning
verdict: agreed

Past its length the cache rolls, which the uncached path has no counterpart of; it is not tested.
"""

import torch
from checkout import hunt, library


class Subject:
    """The model holds the cache."""

    vocab_size, max_length = 64, 32
    one_cache_at_a_time = True

    def __init__(self, seed=0):
        torch.manual_seed(seed)
        module = library("lit_llama.model", bare=["lit_llama"])
        config = module.LLaMAConfig(
            block_size=32, vocab_size=64, padded_vocab_size=64, n_layer=2, n_head=2, n_embd=32
        )
        self.model, self.position = module.LLaMA(config).eval(), 0

    def uncached(self, tokens):
        return self.model(tokens)

    def new_cache(self, batch):
        self.model.kv_caches.clear()
        self.position = 0
        return self

    def cached(self, tokens, cache):
        start, self.position = self.position, self.position + tokens.shape[1]
        return self.model(tokens, input_pos=torch.arange(start, self.position)), self


if __name__ == "__main__":
    hunt(__file__)
