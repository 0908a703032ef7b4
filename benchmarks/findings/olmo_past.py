"""OLMo: the cache of past keys and values agrees, in chunks as well.

repository: https://github.com/allenai/OLMo
commit: 59a53e3f68e546330ca5a99ec626e58f9ab96494
file: olmo/model.py
needs: omegaconf, rich, boto3, cached-path; datasets, which reads training data, is stubbed
verdict: agreed

Rotary positions or ALiBi, both kinds of block.
"""

import torch
from checkout import hunt, library, stub


class Subject:
    """A cache is the list of pairs of the library."""

    vocab_size, max_length = 64, 32
    choices = {"alibi": (False, True), "block_type": ("sequential", "llama")}

    def __init__(self, seed=0, alibi=False, block_type="sequential"):
        torch.manual_seed(seed)
        stub("datasets", Dataset=object, DatasetDict=dict)
        model = library("olmo.model", bare=["olmo"])
        config = library("olmo.config", bare=["olmo"]).ModelConfig(
            d_model=32,
            n_heads=4,
            n_layers=2,
            vocab_size=64,
            embedding_size=64,
            max_sequence_length=32,
            rope=not alibi,
            alibi=alibi,
            block_type=block_type,
            attention_dropout=0.0,
            residual_dropout=0.0,
            embedding_dropout=0.0,
            init_device="cpu",
        )
        self.model = model.OLMo(config).eval()

    def uncached(self, tokens):
        return self.model(tokens).logits

    def new_cache(self, batch):
        return None

    def cached(self, tokens, cache):
        output = self.model(tokens, past_key_values=cache, use_cache=True)
        return output.logits, output.attn_key_values


if __name__ == "__main__":
    hunt(__file__)
