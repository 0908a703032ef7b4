"""bamba: positions start again at 0 in every call that is not given any.

`position_ids` default to a range from 0, whatever the cache holds. Given, the two paths agree.
Runs the library alone: exits with 0 if it is so in the installed release, with 1 if it is not.
"""

from measured import conclude, difference, model_of

model = model_of(
    "bamba",
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
conclude("with positions", good, "without", bad)
