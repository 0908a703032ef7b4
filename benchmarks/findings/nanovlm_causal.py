"""nanoVLM: a chunk of several tokens on a filled cache has no causal mask.

repository: https://github.com/huggingface/nanoVLM
commit: 4e0c0961846135c2217f95e54cb4c2d66eb55e42
file: models/language_model.py
needs: nothing
verdict: diverged

The causal mask is asked for only where there are as many queries as keys. A chunk on a filled cache
has more keys than queries, gets no mask, and its tokens see the later ones of the chunk.
"""

import torch
from checkout import hunt, library

SIZES = {
    "lm_hidden_dim": 32,
    "lm_inter_dim": 48,
    "lm_max_position_embeddings": 64,
    "lm_vocab_size": 50,
    "lm_n_heads": 4,
    "lm_n_kv_heads": 2,
    "lm_n_blocks": 2,
    "lm_use_tokens": True,
}


class Subject:
    """The language model alone, with tokens for input. A cache is the list of the library, and the
    number of tokens that it holds."""

    vocab_size, max_length = 50, 64

    def __init__(self, seed=0):
        torch.manual_seed(seed)
        config = library("models.config").VLMConfig(**SIZES)
        self.model = library("models.language_model").LanguageModel(config).eval()
        for parameter in self.model.parameters():
            torch.nn.init.normal_(parameter, std=0.3)

    def uncached(self, tokens):
        return self.model(tokens)[0]

    def new_cache(self, batch):
        return None, 0

    def cached(self, tokens, cache):
        held, position = cache
        logits, held = self.model(tokens, kv_cache=held, start_pos=position)
        return logits, (held, position + tokens.shape[1])


if __name__ == "__main__":
    hunt(__file__)
