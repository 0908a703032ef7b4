"""nanochat: a chunk of several tokens on a filled cache forgets the embedding before it.

repository: https://github.com/karpathy/nanochat
commit: 92d63d4e8bb4df75c3b71618f31ddde2378b2bcd
file: nanochat/gpt.py
needs: filelock
verdict: diverged

Each token's embedding is mixed with that of the token before it. The cache keeps the last embedding
for the next call, and a call with one token uses it. A call with several tokens on a filled cache
leaves its first token unmixed, as if it began the text.
"""

import torch
from checkout import hunt, library, stub

SIZES = {"num_layers": 2, "num_heads": 2, "head_dim": 16}


class Subject:
    """Two layers. `smear_lambda` is drawn, since it mixes nothing at its initial 0."""

    vocab_size, max_length = 64, 32

    def __init__(self, seed=0):
        torch.manual_seed(seed)
        for tokenizer in ("rustbpe", "tiktoken"):  # the module of the cache imports them
            stub(tokenizer)
        gpt = library("nanochat.gpt")
        self.cache_class = library("nanochat.engine").KVCache
        config = gpt.GPTConfig(32, vocab_size=64, n_layer=2, n_head=2, n_kv_head=2, n_embd=32)
        self.model = gpt.GPT(config).eval()
        self.model.init_weights()
        for parameter in self.model.parameters():
            torch.nn.init.normal_(parameter, std=0.5)

    def uncached(self, tokens):
        if tokens.shape[1] == 1:  # the library's forward without a cache wants two tokens
            return self.model(tokens.expand(-1, 2))[:, :1]
        return self.model(tokens)

    def new_cache(self, batch):
        return self.cache_class(batch, seq_len=32, device="cpu", dtype=torch.float32, **SIZES)

    def cached(self, tokens, cache):
        return self.model(tokens, kv_cache=cache), cache


if __name__ == "__main__":
    hunt(__file__)
