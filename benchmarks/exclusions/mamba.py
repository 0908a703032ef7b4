"""mamba: a second chunk forgets the recurrent state.

Fed in one call, or one token at a time, the model says the same with its cache as without; fed a
chunk of several tokens on a cache that is not empty, it scans them from an empty state.
Runs the library alone: exits with 0 if it is so in the installed release, with 1 if it is not.
"""

from measured import conclude, difference, model_of

model = model_of("mamba", num_hidden_layers=2, state_size=8)
good = max(difference(model, (9,)), difference(model, (1,) * 9))
bad = difference(model, (4, 5))
conclude("one call or single tokens", good, "two chunks", bad)
