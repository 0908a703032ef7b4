"""A mutant that no checker can miss. One that is not killed shows that the bench is broken."""

from mutants.mutant import mutant, steps


@mutant("readout", site="logits", witness=steps(1), canary=True)
def rolls_the_vocabulary(real):
    """Each token's logit is the one of the token before it."""
    return lambda weights, x: real(weights, x).roll(1, -1)
