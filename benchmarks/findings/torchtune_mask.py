"""torchtune: without its cache, and without a mask, a model that has one set up is not causal.

repository: https://github.com/pytorch/torchtune
commit: bd2a0fc7c31430972728494fa01aaeeb0ebf1ba1
file: torchtune/modules/attention.py
needs: torchao
verdict: diverged

Attention is causal by default only if no cache was set up. `disable_kv_cache` switches a cache off
and leaves it set up, so a call without a mask lets each token see the later ones.
"""

import torch
from checkout import hunt, library

BARE = ["torchtune", "torchtune.models", "torchtune.models.llama3"]


class Subject:
    """A small Llama 3 whose modules hold the cache. With `mask` the uncached call has one, too."""

    vocab_size, max_length = 50, 32
    one_cache_at_a_time = True

    def __init__(self, seed=0, mask=False):
        torch.manual_seed(seed)
        build = library("torchtune.models.llama3._component_builders", bare=BARE).llama3
        self.tools = library("torchtune.modules.common_utils", bare=BARE)
        self.model = build(
            vocab_size=50,
            num_layers=2,
            num_heads=4,
            num_kv_heads=2,
            embed_dim=32,
            max_seq_len=32,
            intermediate_dim=48,
        ).eval()
        self.causal, self.masked = torch.ones(1, 32, 32, dtype=torch.bool).tril(), mask
        self.position = 0

    def uncached(self, tokens):
        length = tokens.shape[1]
        if not self.model.caches_are_setup():
            self.new_cache(len(tokens))
        with self.tools.disable_kv_cache(self.model):
            mask = self.causal[:, :length, :length] if self.masked else None
            return self.model(tokens, mask=mask)

    def new_cache(self, batch):
        if self.model.caches_are_setup():
            self.tools.delete_kv_caches(self.model)
        self.model.setup_caches(batch, torch.get_default_dtype(), decoder_max_seq_len=32)
        self.position = 0
        return self

    def cached(self, tokens, cache):
        start, self.position = self.position, self.position + tokens.shape[1]
        mask = self.causal[:, start : self.position].expand(len(tokens), -1, -1)
        positions = torch.arange(start, self.position).expand(len(tokens), -1)
        return self.model(tokens, mask=mask, input_pos=positions), self


if __name__ == "__main__":
    hunt(__file__)
