"""gpt_neo: a static cache with a local layer is silently wrong.

The local layer takes its window from the end of the mask, which for a static cache is the end of
the cache and not of what it holds. With global layers alone the two paths agree.
Runs the library alone: exits with 0 if it is so in the installed release, with 1 if it is not.
"""

from measured import conclude, difference, model_of
from transformers import StaticCache


def static(model):
    return StaticCache(config=model.config, max_cache_len=32)


settings = {"num_layers": 2, "num_heads": 4, "window_size": 6, "max_position_embeddings": 64}
good = difference(
    model_of("gpt_neo", **settings, attention_types=[[["global"], 2]]),
    (3, 1, 1, 5),
    cache_of=static,
)
bad = difference(
    model_of("gpt_neo", **settings, attention_types=[[["global", "local"], 1]]),
    (3, 1, 1, 5),
    cache_of=static,
)
conclude("global layers alone", good, "with a local one", bad)
