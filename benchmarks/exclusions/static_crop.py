"""A static cache cropped by more than it holds counts a negative length, and the next call fails.

A dynamic cache is empty after the same call. Run with transformers 5.24.0 and torch alone; exit 0
if it is still so.
"""

import sys

import torch
from transformers import LlamaConfig, LlamaForCausalLM, StaticCache

config = LlamaConfig(
    vocab_size=32, hidden_size=16, intermediate_size=16, num_hidden_layers=1, num_attention_heads=2
)
model = LlamaForCausalLM(config).eval()
cache = StaticCache(config=config, max_cache_len=16)
with torch.no_grad():
    model(torch.tensor([[1]]), past_key_values=cache, use_cache=True)
    cache.crop(-2)
    print("length after cropping 2 of 1:", int(cache.get_seq_length()))
    try:
        logits = model(torch.tensor([[2]]), past_key_values=cache, use_cache=True).logits
        wanted = model(torch.tensor([[2]]), use_cache=False).logits
        wrong = float((logits - wanted).abs().max()) > 1e-4
        print("differs from uncached:", wrong)
    except IndexError as error:
        wrong = True
        print("raised:", error)
sys.exit(0 if wrong else 1)
