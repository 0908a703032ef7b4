"""bark: the text model's cache agrees, by single tokens, which is all that it takes.

repository: https://github.com/suno-ai/bark
commit: f4f32d4cd480dfec1c245d258174bc9bde3c2148
file: bark/model.py
needs: nothing
verdict: agreed

The model asserts that a call on a cache has one token. It gives the logits of the last position
alone, so the adapter applies the head to the states of all.
"""

import torch
from checkout import hunt, library


class Subject:
    """The GPT of the text and coarse models. A cache is the tuple of the library."""

    vocab_size, max_length = 50, 32

    def __init__(self, seed=0):
        torch.manual_seed(seed)
        module = library("bark.model", bare=["bark"])
        sizes = {"block_size": 32, "n_layer": 2, "n_head": 2, "n_embd": 32}
        config = module.GPTConfig(input_vocab_size=50, output_vocab_size=50, **sizes)
        self.model, self.states = module.GPT(config).eval(), None
        self.model.transformer.ln_f.register_forward_hook(self.keep)

    def keep(self, module, inputs, states):
        self.states = states

    def uncached(self, tokens):
        self.model(tokens)
        return self.model.lm_head(self.states)

    def new_cache(self, batch):
        return None

    def cached(self, tokens, cache):
        if cache is not None and tokens.shape[1] > 1:
            raise NotImplementedError("the library asserts one token")
        _, cache = self.model(tokens, past_kv=cache, use_cache=True)
        return self.model.lm_head(self.states), cache


if __name__ == "__main__":
    hunt(__file__)
