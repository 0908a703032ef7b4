"""bloom: with a mask and a static cache the first call raises.

The bias of its attention has a column for each token of the mask, and is added to scores that have
one for each slot of the cache. Without a mask, or with a dynamic cache, there is no error.
Runs the library alone: exits with 0 if it is so in the installed release, with 1 if it is not.
"""

import sys

import torch
import transformers
from measured import model_of
from transformers import DynamicCache, StaticCache


@torch.no_grad()
def error(cache, **given):
    """The error of the first call, None if there is none."""
    try:
        model(tokens, use_cache=True, cache=cache, **given)
    except RuntimeError as raised:
        return str(raised).splitlines()[0]
    return None


model = model_of("bloom", n_layer=2, n_head=4)
tokens = torch.tensor([[3, 4, 5]])
mask = torch.ones_like(tokens)
bad = error(StaticCache(config=model.config, max_cache_len=32), attention_mask=mask)
good = [
    error(StaticCache(config=model.config, max_cache_len=32)),
    error(DynamicCache(config=model.config), attention_mask=mask),
]
print(f"transformers {transformers.__version__}")
print(f"static cache and mask: {bad}; one of them alone: {good}")
sys.exit(0 if bad and not any(good) else 1)
