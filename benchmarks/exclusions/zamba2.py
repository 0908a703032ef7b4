"""zamba2: a single token ignores the lower limit of the time step.

A chunk clamps the time step to `time_step_min`, a single token on a cache does not. With a limit
that no time step comes near the two agree.
Runs the library alone: exits with 0 if it is so in the installed release, with 1 if it is not.
"""

import os
import sys

os.environ["HF_HUB_OFFLINE"] = "1"

import torch
import transformers
from transformers import AutoConfig, AutoModelForCausalLM, DynamicCache

transformers.utils.logging.set_verbosity_error()
torch.set_num_threads(1)


def model_of(**settings):
    """A tiny model with random weights in float64."""
    config = AutoConfig.for_model("zamba2", vocab_size=64, hidden_size=32, **settings)
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(config, attn_implementation="eager").double().eval()
    generator = torch.Generator().manual_seed(1)
    for parameter in model.parameters():
        if parameter.dim() > 1:
            parameter.data.normal_(0, 0.2, generator=generator)
    return model


@torch.no_grad()
def difference(model, sizes, positions=False):
    """How far the logits of the last call are from those without a cache, relative to the
    largest, when the tokens are fed in calls of `sizes`."""
    tokens = torch.randint(3, 64, (1, sum(sizes)), generator=torch.Generator().manual_seed(2))
    whole = model(tokens, use_cache=False).logits
    cache, start = DynamicCache(config=model.config), 0
    for size in sizes:
        stop = start + size
        given = {"position_ids": torch.arange(start, stop)[None]} if positions else {}
        output = model(tokens[:, start:stop], cache=cache, use_cache=True, **given)
        gap = (output.logits - whole[:, start:stop]).abs().max() / whole.abs().max()
        start = stop
    return float(gap)


settings = {"layers_block_type": ["linear_attention", "hybrid"], "num_hidden_layers": 2}
settings |= {"num_attention_heads": 4, "num_key_value_heads": 2, "attention_head_dim": 16}
settings |= {"mamba_d_state": 8, "mamba_headdim": 8, "n_mamba_heads": 8, "chunk_size": 4}
settings |= {"hybrid_layer_ids": [1], "intermediate_size": 48, "adapter_rank": 4}
good = difference(model_of(**settings, time_step_min=1e-12), (4, 1, 1))
bad = difference(model_of(**settings, time_step_min=0.5), (4, 1, 1))

print(f"transformers {transformers.__version__}")
print(f"without a limit {good:.1e}, with one {bad:.1e}")
sys.exit(0 if good < 1e-5 < bad else 1)
