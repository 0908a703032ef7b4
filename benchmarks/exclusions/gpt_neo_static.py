"""gpt_neo: a static cache with a local layer is silently wrong.

The local layer takes its window from the end of the mask, which for a static cache is the end of
the cache and not of what it holds. With global layers alone the two paths agree.
Runs the library alone: exits with 0 if it is so in the installed release, with 1 if it is not.
"""

import os
import sys

os.environ["HF_HUB_OFFLINE"] = "1"

import torch
import transformers
from transformers import AutoConfig, AutoModelForCausalLM, StaticCache

transformers.utils.logging.set_verbosity_error()
torch.set_num_threads(1)


def model_of(**settings):
    """A tiny model with random weights in float64."""
    config = AutoConfig.for_model("gpt_neo", vocab_size=64, hidden_size=32, **settings)
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(config, attn_implementation="eager").double().eval()
    generator = torch.Generator().manual_seed(1)
    for parameter in model.parameters():
        if parameter.dim() > 1:
            parameter.data.normal_(0, 0.2, generator=generator)
    return model


@torch.no_grad()
def difference(model, sizes):
    """How far the logits of the last call are from those without a cache, relative to the
    largest, when the tokens are fed in calls of `sizes`."""
    tokens = torch.randint(3, 64, (1, sum(sizes)), generator=torch.Generator().manual_seed(2))
    whole = model(tokens, use_cache=False).logits
    cache, start = StaticCache(config=model.config, max_cache_len=32), 0
    for size in sizes:
        stop = start + size
        output = model(tokens[:, start:stop], cache=cache, use_cache=True)
        gap = (output.logits - whole[:, start:stop]).abs().max() / whole.abs().max()
        start = stop
    return float(gap)


settings = {"num_layers": 2, "num_heads": 4, "window_size": 6, "max_position_embeddings": 64}
good = difference(model_of(**settings, attention_types=[[["global"], 2]]), (3, 1, 1, 5))
bad = difference(model_of(**settings, attention_types=[[["global", "local"], 1]]), (3, 1, 1, 5))

print(f"transformers {transformers.__version__}")
print(f"global layers alone {good:.1e}, with a local one {bad:.1e}")
sys.exit(0 if good < 1e-5 < bad else 1)
