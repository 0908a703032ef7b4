"""Broken isolation: a row depends on the other rows of its batch, in both paths alike.

The uncached path runs first and keeps a value of the last batch of several rows, which the cached
path then uses too.
"""

from mutants.mutant import mutant, steps


@mutant(".uncached:logits", "logits", law="isolation", both=True, witness=steps(1, 1, rows=2))
def one_temperature_for_the_batch(uncached, cached):
    """Logits are scaled by a factor computed from the first tokens of all rows."""
    scale = 1.0

    def whole(config, weights, tokens, note, sides):
        nonlocal scale
        if len(tokens) > 1:
            scale = 1 + float(tokens[:, 0].double().mean()) / 1024
        return scale * uncached(config, weights, tokens, note, sides)

    return whole, lambda *args: scale * cached(*args)


@mutant(".maths:looked_up", "embed", law="isolation", both=True, witness=steps(1, 1, rows=2))
def last_row_is_mixed_into_all(looked_up, embed):
    """An eighth of the embedding of the last row's first token is added to every embedding."""
    token = None

    def whole(table, index):
        nonlocal token
        if len(index) > 1:
            token = index[-1:, :1]
        found = looked_up(table, index)
        return found if token is None else found + looked_up(table, token) / 8

    def record(config, weights, tokens, index):
        found = embed(config, weights, tokens, index)
        return found if token is None else found + weights.token[token] / 8

    return whole, record


@mutant(".maths:looked_up", "embed", law="isolation", both=True, witness=steps(1, 1, rows=2))
def all_rows_take_in_the_first(looked_up, embed):
    """An eighth of the embedding of row 0's first token is added to every embedding."""
    token = None

    def whole(table, index):
        nonlocal token
        if len(index) > 1:
            token = index[:1, :1]
        found = looked_up(table, index)
        return found if token is None else found + looked_up(table, token) / 8

    def record(config, weights, tokens, index):
        found = embed(config, weights, tokens, index)
        return found if token is None else found + weights.token[token] / 8

    return whole, record
