"""Faults of the uncached path."""

from tests.quality.injected.fault import either, fault

UNCACHED = (
    fault(
        "llama.uncached_without_a_mask",
        "uncached path",
        "attention_mask=causal_mask,",
        f"attention_mask=causal_mask * {either('cache is None', '0', '1')},",
        path="uncached",
        in_tests=True,
    ),
    fault(
        "gpt2.uncached_mean_over_the_row",
        "uncached path",
        "self.ln_f(hidden_states)",
        "self.ln_f(hidden_states - hidden_states.mean(1, True) * "
        f"{either('cache is None', '1', '0')})",
        path="uncached",
    ),
    fault(
        "lfm2.uncached_looks_ahead",
        "uncached path",
        "hidden_states = B * x",
        f"hidden_states = B * x.roll({either('cache is None', '-1', '0')}, -1)",
        path="uncached",
    ),
)
