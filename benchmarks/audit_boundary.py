"""Measure how far the audit's checkpoint stays below its boundary, over training seeds.

For each seed: the loss; the largest |uncached - cached| logit of the audit (every prefix and
schedule); the error of each float32 path against the same weights in float64, which does not
depend on the two paths' kernels agreeing by luck; and the smallest gap between the two largest
logits on which greedy generation depends. Run it under another ATEN_CPU_CAPABILITY (default,
avx2) for other kernels, and with THREADS for another thread count.
"""

from __future__ import annotations

import os
import statistics
import sys

import torch

from kvfuzz.audit import schedules
from kvfuzz.findings import largest
from kvfuzz.generate import generate_uncached
from kvfuzz.interventions import one_by_one, position_differences
from kvfuzz.run import run_cached, run_uncached
from kvfuzz.subject import Subject
from kvfuzz.zoo.checkpoint import CONFIG, MAX_LOSS, PATTERNS, Recipe, train
from kvfuzz.zoo.decoder import Decoder
from kvfuzz.zoo.weights import Parameters

SEEDS = 32


def measured(seed: int) -> tuple[float, float, float, float]:
    """Loss, largest difference of the paths, largest error against float64, smallest gap."""
    checkpoint = train(Recipe(seed=seed), max_loss=torch.inf)
    decoder = checkpoint.decoder
    differences = [
        largest(position_differences(decoder, pattern[:length], schedule).tolist())
        for pattern in PATTERNS
        for length in range(1, len(pattern) + 1)
        for schedule in schedules(length)
    ]
    error = max(error_to_float64(decoder, pattern) for pattern in PATTERNS)
    gap = min(greedy_gap(decoder, pattern) for pattern in PATTERNS)
    return checkpoint.loss, max(differences), error, gap


def error_to_float64(decoder: Decoder, pattern: tuple[int, ...]) -> float:
    """The larger error of the two float32 paths on `pattern`."""
    exact = Parameters(CONFIG, decoder.model.flat.detach().double())
    truth = run_uncached(Decoder(CONFIG, parameters=exact), (pattern,))
    case = one_by_one(pattern)
    paths = (run_uncached(decoder, case.tokens), run_cached(decoder, case.tokens, case.steps()))
    return max(float((path.double() - truth).abs().max()) for path in paths)


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
    names = ("loss", "difference", "error", "gap")
    for name, values in zip(names, zip(*rows, strict=True), strict=True):
        print(
            f"{name:10}  seed 0 {values[0]:.3g}  least {min(values):.3g}  "
            f"median {statistics.median(values):.3g}  most {max(values):.3g}"
        )
    print(f"{sum(row[0] <= MAX_LOSS for row in rows)} of {SEEDS} seeds within the loss bound")


if __name__ == "__main__":
    sys.exit(main())
