"""jamba: a second chunk forgets the recurrent state.

Fed in one call, or one token at a time, the model says the same with its cache as without; fed a
chunk of several tokens on a cache that is not empty, its mamba layers begin from an empty state.
Runs the library alone: exits with 0 if it is so in the installed release, with 1 if it is not.
"""

from measured import conclude, difference, model_of

model = model_of(
    "jamba",
    num_hidden_layers=2,
    num_attention_heads=4,
    num_key_value_heads=2,
    intermediate_size=48,
    mamba_d_state=8,
    mamba_dt_rank=4,
    attn_layer_period=2,
    attn_layer_offset=1,
    num_experts=1,
    num_experts_per_tok=1,
)
good = max(difference(model, (9,)), difference(model, (1,) * 9))
bad = difference(model, (4, 5))
conclude("one call or single tokens", good, "two chunks", bad)
