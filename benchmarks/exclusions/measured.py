"""Runs a tiny model with its cache and without, for the scripts in this folder.

Transformers and torch alone, so that what a script shows cannot be a mistake of kvfuzz.
"""

import os
import sys

os.environ["HF_HUB_OFFLINE"] = "1"

import torch
import transformers
from transformers import AutoConfig, AutoModelForCausalLM, DynamicCache

transformers.utils.logging.set_verbosity_error()
torch.set_num_threads(1)


def model_of(kind, **settings):
    """A tiny model of type `kind` with random weights in float64."""
    config = AutoConfig.for_model(kind, vocab_size=64, hidden_size=32, **settings)
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(config, attn_implementation="eager").double().eval()
    generator = torch.Generator().manual_seed(1)
    for parameter in model.parameters():
        if parameter.dim() > 1:
            parameter.data.normal_(0, 0.2, generator=generator)
    return model


@torch.no_grad()
def difference(model, sizes, rows=1, positions=False, cache_of=None, word="cache"):
    """How far the logits of the last call are from those without a cache, relative to the largest,
    when the tokens of `rows` rows are fed in calls of `sizes`.

    The cache is `cache_of(model)`, by default dynamic; the model takes and returns it as `word`.
    """
    tokens = torch.randint(3, 64, (rows, sum(sizes)), generator=torch.Generator().manual_seed(2))
    whole = model(tokens, use_cache=False).logits
    cache, start = (cache_of or _dynamic)(model), 0
    for size in sizes:
        stop = start + size
        given = {"position_ids": torch.arange(start, stop)[None]} if positions else {}
        output = model(tokens[:, start:stop], use_cache=True, **{word: cache}, **given)
        cache = output.get(word, cache)  # some change it in place and do not hand it back
        gap = (output.logits - whole[:, start:stop]).abs().max() / whole.abs().max()
        start = stop
    return float(gap)


def conclude(when_right, good, when_wrong, bad):
    """Print both differences, and exit with 0 if the second alone is more than rounding."""
    print(f"transformers {transformers.__version__}")
    print(f"{when_right} {good:.1e}, {when_wrong} {bad:.1e}")
    sys.exit(0 if good < 1e-5 < bad else 1)


def _dynamic(model):
    return DynamicCache(config=model.config)
