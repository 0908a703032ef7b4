"""Measure how far the audit's checkpoint stays below its boundary, over training seeds.

For each seed: the loss; the largest |uncached - cached| logit of the audit (every prefix and
schedule); the same for an uncached path that sums features and hidden units in other orders, of
which the worst is taken, as if its kernels had nothing in common with the cached path's; and the
smallest gap between the two largest logits on which greedy generation depends. Run it under
another ATEN_CPU_CAPABILITY (default, avx2) for other kernels, and with THREADS for another thread
count.
"""

from __future__ import annotations

import os
import statistics
from itertools import permutations

import torch

from kvfuzz.audit.audit import schedules
from kvfuzz.audit.findings import largest
from kvfuzz.audit.generate import generate_uncached
from kvfuzz.audit.sabotage import one_by_one, position_differences
from kvfuzz.subjects.protocol import Subject
from kvfuzz.subjects.run import run_cached, run_uncached
from kvfuzz.subjects.zoo.checkpoint import CONFIG, MAX_LOSS, PATTERNS, Recipe, train
from kvfuzz.subjects.zoo.decoder import Decoder
from kvfuzz.subjects.zoo.weights import Parameters

SEEDS = 32


def measured(seed: int) -> tuple[float, float, float, float]:
    """Loss, largest difference of the paths, the same regrouped, smallest gap."""
    checkpoint = train(Recipe(seed=seed), max_loss=torch.inf)
    decoder = checkpoint.decoder
    differences = [
        largest(position_differences(decoder, pattern[:length], schedule).tolist())
        for pattern in PATTERNS
        for length in range(1, len(pattern) + 1)
        for schedule in schedules(length)
    ]
    regrouped = max(regrouped_difference(decoder, pattern) for pattern in PATTERNS)
    gap = min(greedy_gap(decoder, pattern) for pattern in PATTERNS)
    return checkpoint.loss, max(differences), regrouped, gap


def regrouped_difference(decoder: Decoder, pattern: tuple[int, ...]) -> float:
    """The largest |uncached - cached| logit where the uncached path sums in other orders."""
    case = one_by_one(pattern)
    cached = run_cached(decoder, case)
    others = [
        Decoder(CONFIG, parameters=reordered(decoder.model, list(order)))
        for order in permutations(range(CONFIG.width))
    ]
    return max(float((run_uncached(o, case.tokens) - cached).abs().max()) for o in others)


def reordered(parameters: Parameters, order: list[int]) -> Parameters:
    """The same function with the features of the residual stream in `order` and the hidden units
    of each MLP reversed: every sum over them is grouped otherwise."""
    weights = parameters.weights()
    pieces = [weights.token[:, order], weights.position[:, order]]
    for layer in weights.layers:
        pieces += [norm[order] for norm in (layer.attention_norm.gain, layer.attention_norm.bias)]
        pieces += [matrix[order] for matrix in (layer.query, layer.key, layer.value)]
        pieces += [layer.out[:, order]]
        pieces += [norm[order] for norm in (layer.mlp_norm.gain, layer.mlp_norm.bias)]
        pieces += [layer.mlp_in[order].flip(1), layer.mlp_in_bias.flip(0)]
        pieces += [layer.mlp_out.flip(0)[:, order], layer.mlp_out_bias[order]]
    pieces += [weights.final_norm.gain[order], weights.final_norm.bias[order]]
    return Parameters(CONFIG, torch.cat([piece.detach().flatten() for piece in pieces]))


def greedy_gap(decoder: Subject, pattern: tuple[int, ...]) -> float:
    """The smallest gap between the two largest logits along greedy generation."""
    prompt = pattern[:2]
    tokens = prompt + generate_uncached(decoder, prompt, CONFIG.max_length - len(prompt))
    top = run_uncached(decoder, (tokens,))[0, len(prompt) - 1 : -1].topk(2).values
    return float((top[:, 0] - top[:, 1]).min())


def main() -> None:
    torch.set_num_threads(int(os.environ.get("THREADS", "1")))
    print("kernels", torch.backends.cpu.get_cpu_capability(), "threads", torch.get_num_threads())
    rows = [measured(seed) for seed in range(SEEDS)]
    names = ("loss", "difference", "regrouped", "gap")
    for name, values in zip(names, zip(*rows, strict=True), strict=True):
        print(
            f"{name:10}  seed 0 {values[0]:.3g}  least {min(values):.3g}  "
            f"median {statistics.median(values):.3g}  most {max(values):.3g}"
        )
    print(f"{sum(row[0] <= MAX_LOSS for row in rows)} of {SEEDS} seeds within the loss bound")


if __name__ == "__main__":
    main()
