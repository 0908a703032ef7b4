"""Wrong mask: attention reaches where it should not, or not where it should."""

from mutants.mutant import mutant, steps


@mutant(
    "attend",
    site="0.attention",
    witness=steps(1, 1),
    sizes={"float64": 1e-12, "float32": 1e-4},
)
def leaks_attention_mass(real, size):
    """A share of the attention, its size, is spread evenly over all visible slots, as if a mask
    were added a little too softly."""

    def attend(config, weights, layer, query, keys, values, index):
        exact = real(config, weights, layer, query, keys, values, index)
        even = real(config, weights, layer, 0 * query, keys, values, index)
        return (1 - size) * exact + size * even

    return attend
