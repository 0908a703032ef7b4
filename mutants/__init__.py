"""The library of injected faults, and the score that tells whether the checker catches them."""
