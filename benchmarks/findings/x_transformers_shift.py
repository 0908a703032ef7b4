"""x-transformers: `shift_tokens` has no state in the cache, so that decoding shifts in zeros.

repository: https://github.com/lucidrains/x-transformers
commit: 9252ed7838021ee61e6c5be0930b3a9a88efdf06
file: x_transformers/x_transformers.py
needs: einops, einx, loguru, torch-einops-utils
verdict: diverged

With `shift_tokens=1` a part of each token's features comes from the token before it. A call on a
cache computes the new tokens only, and the first of them gets zeros for the features of the token
before. `can_cache_kv` stays true, so `generate` uses the cache by default.
"""

import torch
from checkout import hunt, library


class Subject:
    """Rotary positions. The library wants the whole text with each call on a cache, and computes
    the last `cache_age` tokens of it; a cache is therefore the text and the library's own."""

    vocab_size, max_length = 50, 64

    def __init__(self, seed=0):
        torch.manual_seed(seed)
        parts = library("x_transformers.x_transformers")
        layers = parts.Decoder(dim=32, depth=2, heads=2, rotary_pos_emb=True, shift_tokens=1)
        self.model = parts.TransformerWrapper(num_tokens=50, max_seq_len=64, attn_layers=layers)
        self.model.eval()

    def uncached(self, tokens):
        return self.model(tokens)

    def new_cache(self, batch):
        return torch.zeros(batch, 0, dtype=torch.int64), None

    def cached(self, tokens, cache):
        text, held = torch.cat((cache[0], tokens), 1), cache[1]
        logits, held = self.model(
            text, cache=held, cache_age=tokens.shape[1], return_intermediates=True
        )
        return logits, (text, held)


if __name__ == "__main__":
    hunt(__file__)
