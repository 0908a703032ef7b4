"""moshi: the cache keeps a window, and the uncached mask has none.

The configuration has a `sliding_window`, by which the cache evicts; the mask is made by
`create_causal_mask`, which knows no window. The two agree as long as the window is not full.
Runs the library alone: exits with 0 if it is so in the installed release, with 1 if it is not.
"""

from measured import conclude, difference, model_of

settings = {"num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2}
settings |= {"head_dim": 8, "ffn_dim": 48, "max_position_embeddings": 64}
good = difference(model_of("moshi", **settings, sliding_window=32), (1,) * 10)
bad = difference(model_of("moshi", **settings, sliding_window=6), (1,) * 10)
conclude("within the window", good, "past it", bad)
