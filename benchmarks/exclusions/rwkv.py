"""rwkv: one token for two rows mixes the rows.

A single token on a state is combined with the last one of every row, not of its own: right for one
row, wrong for more.
Runs the library alone: exits with 0 if it is so in the installed release, with 1 if it is not.
"""

import os
import sys

os.environ["HF_HUB_OFFLINE"] = "1"

import torch
import transformers
from transformers import AutoConfig, AutoModelForCausalLM

transformers.utils.logging.set_verbosity_error()
torch.set_num_threads(1)


def model_of(**settings):
    """A tiny model with random weights in float64."""
    config = AutoConfig.for_model("rwkv", vocab_size=64, hidden_size=32, **settings)
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(config, attn_implementation="eager").double().eval()
    generator = torch.Generator().manual_seed(1)
    for parameter in model.parameters():
        if parameter.dim() > 1:
            parameter.data.normal_(0, 0.2, generator=generator)
    return model


@torch.no_grad()
def difference(model, sizes, rows):
    """How far the logits of the last call are from those without a cache, relative to the
    largest, when the tokens are fed in calls of `sizes`."""
    tokens = torch.randint(3, 64, (rows, sum(sizes)), generator=torch.Generator().manual_seed(2))
    whole = model(tokens, use_cache=False).logits
    state, start = None, 0
    for size in sizes:
        stop = start + size
        output = model(tokens[:, start:stop], state=state, use_cache=True)
        state = output.state
        gap = (output.logits - whole[:, start:stop]).abs().max() / whole.abs().max()
        start = stop
    return float(gap)


model = model_of(num_hidden_layers=2, attention_hidden_size=32, intermediate_size=48)
good = max(difference(model, (3, 1), rows=1), difference(model, (3, 2), rows=2))
bad = difference(model, (3, 1), rows=2)

print(f"transformers {transformers.__version__}")
print(f"one row, or two tokens {good:.1e}, one token of two rows {bad:.1e}")
sys.exit(0 if good < 1e-5 < bad else 1)
