"""torchscale: the recurrent form of RetNet differs from the parallel one by an epsilon.

repository: https://github.com/microsoft/torchscale
commit: 4d1e0e82e5adf86dd424f1463192635b73fc8efc
file: torchscale/component/multiscale_retention.py
needs: fairscale and timm are stubbed where they are missing: they serve training alone
verdict: diverged

The parallel form divides the products of queries and keys by their sum, which the norm that follows
undoes, up to its epsilon. The recurrent form does not divide.
"""

import torch
from checkout import hunt, library, stub

BARE = ["torchscale", "torchscale.architecture", "torchscale.component"]


class Subject:
    """A chunk is fed token by token: the recurrent form takes one. A cache is the incremental state
    of the library, and the text, whose length it takes for the position."""

    vocab_size, max_length = 50, 32

    def __init__(self, seed=0):
        torch.manual_seed(seed)
        for package in ("fairscale", "timm", "timm.models"):
            stub(package)
        stub("fairscale.nn", checkpoint_wrapper=None, wrap=None)
        stub("timm.models.layers", drop_path=None)
        config = library("torchscale.architecture.config", bare=BARE).RetNetConfig(
            vocab_size=50,
            decoder_embed_dim=32,
            decoder_value_embed_dim=32,
            decoder_retention_heads=2,
            decoder_ffn_embed_dim=48,
            decoder_layers=2,
        )
        retnet = library("torchscale.architecture.retnet", bare=BARE).RetNetDecoder
        self.model = retnet(config, embed_tokens=torch.nn.Embedding(50, 32)).eval()
        for parameter in self.model.parameters():
            torch.nn.init.normal_(parameter, std=0.3)

    def uncached(self, tokens):
        return self.model(tokens)[0]

    def new_cache(self, batch):
        return {}, torch.zeros(batch, 0, dtype=torch.int64)

    def cached(self, tokens, cache):
        state, text = cache
        outputs = []
        for token in tokens.split(1, 1):
            text = torch.cat((text, token), 1)
            outputs.append(self.model(text, incremental_state=state)[0])
        return torch.cat(outputs, 1), (state, text)


if __name__ == "__main__":
    hunt(__file__)
