"""DeepSeek-V3: a chunk of several tokens on a filled cache raises, since its mask is too narrow.

repository: https://github.com/deepseek-ai/DeepSeek-V3
commit: 9b4e9788e4a3a731f7567338ed15d3ec549ce03b
file: inference/model.py
needs: nothing; the kernels of `kernel.py` (triton) are stubbed, since float32 weights use none
verdict: diverged

The mask of a call with n tokens is n by n. On a cache that holds k tokens the scores have k + n
columns, and the two cannot be added.
"""

import torch
from checkout import hunt, library, stub

SIZES = {
    "max_batch_size": 8,
    "max_seq_len": 32,
    "vocab_size": 50,
    "dim": 32,
    "inter_dim": 48,
    "n_layers": 2,
    "n_dense_layers": 2,
    "n_heads": 2,
    "kv_lora_rank": 8,
    "qk_nope_head_dim": 8,
    "qk_rope_head_dim": 4,
    "v_head_dim": 8,
}


class Subject:
    """Two dense layers in float32. The modules hold the cache, which every call writes; `forward`
    gives the last token's logits, so a hook keeps the states of all and the head is applied here.
    """

    vocab_size, max_length = 50, 32
    one_cache_at_a_time = True

    def __init__(self, seed=0):
        torch.manual_seed(seed)
        stub("kernel", act_quant=None, weight_dequant=None, fp8_gemm=None)
        library_model = library("model", "inference")
        self.model = library_model.Transformer(library_model.ModelArgs(**SIZES)).float().eval()
        for parameter in self.model.parameters():
            torch.nn.init.normal_(parameter, std=0.3)
        self.states, self.position = None, 0
        self.model.norm.register_forward_hook(self.keep)

    def keep(self, module, inputs, states):
        self.states = states

    @torch.inference_mode()
    def logits(self, tokens, position):
        self.model(tokens, position)
        return self.model.head(self.states)

    def uncached(self, tokens):
        return self.logits(tokens, 0)

    def new_cache(self, batch):
        self.position = 0
        return self

    def cached(self, tokens, cache):
        logits = self.logits(tokens, self.position)
        self.position += tokens.shape[1]
        return logits, self


if __name__ == "__main__":
    hunt(__file__)
