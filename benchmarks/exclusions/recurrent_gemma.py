"""recurrent_gemma: a second chunk forgets the recurrent state.

Fed in one call, or one token at a time, the model says the same with its cache as without; fed a
chunk of several tokens on a cache that is not empty, it begins from an empty state.
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
    config = AutoConfig.for_model("recurrent_gemma", vocab_size=64, hidden_size=32, **settings)
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
    lru_width=32,
    head_dim=8,
    attention_window_size=32,
    block_types=["recurrent", "attention"],
)
good = max(difference(model, (9,)), difference(model, (1,) * 9))
bad = difference(model, (4, 5))

print(f"transformers {transformers.__version__}")
print(f"one call or single tokens {good:.1e}, two chunks {bad:.1e}")
sys.exit(0 if good < 1e-5 < bad else 1)
