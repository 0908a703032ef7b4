"""The canary: a mutant that every checker must kill. If it survives, the campaign is broken."""

from mutants.mutant import mutant, steps


@mutant("readout", site="logits", witness=steps(1), canary=True)
def rolls_the_vocabulary(real):
    """Logits are shifted by one along the vocabulary: each token gets the logit of the one before
    it."""
    return lambda weights, x: real(weights, x).roll(1, -1)
