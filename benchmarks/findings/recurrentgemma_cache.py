"""recurrentgemma: the caches of local attention, convolution and recurrence agree.

repository: https://github.com/google-deepmind/recurrentgemma
commit: 2efa84dac0e68e63547a27a18fa943c98f1c312e
file: recurrentgemma/torch/modules.py
needs: einops, jaxtyping
verdict: agreed

The torch implementation of Griffin. Its convolution asserts that a call on a filled cache has one
token.
"""

import torch
from checkout import hunt, library

BARE = ["recurrentgemma", "recurrentgemma.torch"]


class Subject:
    """Two recurrent blocks and one of attention, with a window of 4."""

    vocab_size, max_length = 50, 64

    def __init__(self, seed=0):
        torch.manual_seed(seed)
        common = library("recurrentgemma.common", bare=BARE)
        kinds = common.TemporalBlockType
        config = common.GriffinConfig(
            vocab_size=50,
            width=32,
            mlp_expanded_width=48,
            num_heads=2,
            block_types=(kinds.RECURRENT, kinds.ATTENTION, kinds.RECURRENT),
            embeddings_scale_by_sqrt_dim=False,
            attention_window_size=4,
            logits_soft_cap=30.0,
        )
        griffin = library("recurrentgemma.torch.griffin", bare=BARE)
        self.model = griffin.Griffin(config, dtype=torch.float32).eval()

    def run(self, tokens, cache, start):
        positions = torch.arange(start, start + tokens.shape[1]).expand(len(tokens), -1)
        return self.model(tokens, positions, cache)

    def uncached(self, tokens):
        return self.run(tokens, None, 0)[0]

    def new_cache(self, batch):
        return None, 0

    def cached(self, tokens, cache):
        held, start = cache
        if held is not None and tokens.shape[1] > 1:
            raise NotImplementedError("the library asserts one token")
        logits, held = self.run(tokens, held, start)
        return logits, (held, start + tokens.shape[1])


if __name__ == "__main__":
    hunt(__file__)
