"""nemotron_h: a single token ignores the lower limit of the time step.

A chunk clamps the time step to `time_step_min`, a single token on a cache does not. With a limit
that no time step comes near the two agree.
Runs the library alone: exits with 0 if it is so in the installed release, with 1 if it is not.
"""

from measured import conclude, difference, model_of

settings = {"layers_block_type": ["linear_attention", "full_attention"], "chunk_size": 4}
settings |= {"num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 8, "expand": 2}
settings |= {"mamba_num_heads": 8, "mamba_head_dim": 8, "ssm_state_size": 8, "n_groups": 2}
settings |= {"intermediate_size": 48}
good = difference(model_of("nemotron_h", **settings, time_step_min=1e-12), (4, 1, 1))
bad = difference(model_of("nemotron_h", **settings, time_step_min=0.5), (4, 1, 1))
conclude("without a limit", good, "with one", bad)
