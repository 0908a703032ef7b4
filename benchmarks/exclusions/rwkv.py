"""rwkv: one token for two rows mixes the rows.

A single token on a state is combined with the last one of every row, not of its own: right for one
row, wrong for more.
Runs the library alone: exits with 0 if it is so in the installed release, with 1 if it is not.
"""

from measured import conclude, difference, model_of

given = {"cache_of": lambda _: None, "word": "state"}
model = model_of("rwkv", num_hidden_layers=2, attention_hidden_size=32, intermediate_size=48)
good = max(difference(model, (3, 1), rows=1, **given), difference(model, (3, 2), rows=2, **given))
bad = difference(model, (3, 1), rows=2, **given)
conclude("one row, or two tokens", good, "one token of two rows", bad)
