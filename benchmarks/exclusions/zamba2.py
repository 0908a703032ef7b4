"""zamba2: a single token ignores the lower limit of the time step.

A chunk clamps the time step to `time_step_min`, a single token on a cache does not. With a limit
that no time step comes near the two agree.
Runs the library alone: exits with 0 if it is so in the installed release, with 1 if it is not.
"""

from measured import conclude, difference, model_of

settings = {"layers_block_type": ["linear_attention", "hybrid"], "num_hidden_layers": 2}
settings |= {"num_attention_heads": 4, "num_key_value_heads": 2, "attention_head_dim": 16}
settings |= {"mamba_d_state": 8, "mamba_headdim": 8, "n_mamba_heads": 8, "chunk_size": 4}
settings |= {"hybrid_layer_ids": [1], "intermediate_size": 48, "adapter_rank": 4}
good = difference(model_of("zamba2", **settings, time_step_min=1e-12), (4, 1, 1))
bad = difference(model_of("zamba2", **settings, time_step_min=0.5), (4, 1, 1))
conclude("without a limit", good, "with one", bad)
