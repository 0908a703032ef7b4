"""bamba: positions start again at 0 in every call that is not given any.

`position_ids` default to a range from 0, whatever the cache holds. Given, the two paths agree.
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
    config = AutoConfig.for_model("bamba", vocab_size=64, hidden_size=32, **settings)
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


model = model_of(
    num_hidden_layers=2,
    num_attention_heads=4,
    num_key_value_heads=2,
    intermediate_size=48,
    mamba_n_heads=8,
    mamba_d_head=8,
    mamba_d_state=8,
    mamba_chunk_size=4,
    attn_layer_indices=[1],
)
good = difference(model, (4, 1, 1, 3), positions=True)
bad = difference(model, (4, 1, 1, 3))

print(f"transformers {transformers.__version__}")
print(f"with positions {good:.1e}, without {bad:.1e}")
sys.exit(0 if good < 1e-5 < bad else 1)
