"""Broken isolation: a row depends on the others of its batch, alike in both paths.

The uncached path, which runs first, keeps something of the last batch of several rows, and the
cached path uses it.
"""

from mutants.mutant import mutant, steps


@mutant(".uncached:logits", "logits", law="isolation", both=True, witness=steps(1, 1, rows=2))
def one_temperature_for_the_batch(uncached, cached):
    """Logits are scaled by a number that the first tokens of the whole batch make."""
    scale = 1.0

    def whole(config, weights, tokens, note):
        nonlocal scale
        if len(tokens) > 1:
            scale = 1 + float(tokens[:, 0].double().mean()) / 1024
        return scale * uncached(config, weights, tokens, note)

    return whole, lambda *args: scale * cached(*args)


@mutant(".maths:looked_up", "embed", law="isolation", both=True, witness=steps(1, 1, rows=2))
def last_row_is_mixed_into_all(looked_up, embed):
    """A little of the first token of the last row is in the record of every token."""
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
