"""Wrong phase: a position is turned, or weighted, by another angle or slope than its own."""

from mutants.mutant import mutant, steps


@mutant(
    "rope_angles",
    site="0.kv",
    witness=steps(1, 1, positions="rope"),
    needs={"positions": ("rope",)},
    sizes={"float64": 1e-12, "float32": 3e-4},
)
def angles_too_large(real, size):
    """Every rotary angle is too large by a factor of 1 + size."""
    return lambda config, index, like: real(config, index, like) * (1 + size)


@mutant(
    "alibi_bias",
    site="0.attention",
    witness=steps(1, 1, 1, positions="alibi"),
    needs={"positions": ("alibi",)},
    sizes={"float64": 1e-11, "float32": 1e-3},
)
def slopes_too_large(real, size):
    """Every penalty for distance is too large by a factor of 1 + size."""
    return lambda config, index, slots, like: real(config, index, slots, like) * (1 + size)


@mutant(
    "alibi_bias",
    site="0.attention",
    witness=steps(1, 1, positions="alibi"),
    seen_in="keras-team/keras-hub#2977",
    needs={"positions": ("alibi",)},
)
def no_penalty_for_distance_on_decode(real):
    """One new token is penalised for no distance at all, though there is a past."""

    def bias(config, index, slots, like):
        found = real(config, index, slots, like)
        return found * 0 if index.shape[-1] == 1 else found

    return bias
