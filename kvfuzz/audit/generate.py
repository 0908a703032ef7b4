"""Generates tokens from a subject, with its cache and without it.

Both paths choose by `next_token`, each from its own logits. A sampled run draws from a private
generator, so that two runs with the same seed get the same random numbers.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor

from kvfuzz.errors import Inconclusive, UsageError
from kvfuzz.subjects.protocol import Subject, device_of

Predict = Callable[[list[int]], Tensor]
"""Takes the tokens that are new since the last call, [n]; returns the next logits [vocab]."""


@dataclass(frozen=True, slots=True)
class Sampling:
    """Draws from the `top_k` likeliest tokens at `temperature`, by a generator seeded with `seed`.

    Raises UsageError for a temperature that is not positive and for a `top_k` below 1.
    """

    temperature: float = 1.0
    top_k: int = 1
    seed: int = 0

    def __post_init__(self) -> None:
        if not (math.isfinite(self.temperature) and self.temperature > 0):
            raise UsageError(f"temperature should be positive, got {self.temperature!r}")
        if self.top_k < 1:
            raise UsageError(f"top_k should be at least 1, got {self.top_k!r}")

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def generate_cached(
    subject: Subject, prompt: Sequence[int], count: int, sampling: Sampling | None = None
) -> tuple[int, ...]:
    """Generates `count` tokens after `prompt`, greedily or by `sampling`: prefills a cache with the
    prompt, then decodes each chosen token. Raises UsageError if they do not fit the subject."""
    _check(subject, prompt, count, sampling)
    cache = subject.new_cache(1)

    def predict(new: list[int]) -> Tensor:
        nonlocal cache
        logits, cache = subject.cached(_row(subject, new), cache)
        return logits[0, -1]

    return _generate(predict, prompt, count, sampling)


def generate_uncached(
    subject: Subject, prompt: Sequence[int], count: int, sampling: Sampling | None = None
) -> tuple[int, ...]:
    """Generates `count` tokens after `prompt`, greedily or by `sampling`: runs over all tokens so
    far for each. Raises UsageError if they do not fit the subject."""
    _check(subject, prompt, count, sampling)
    tokens: list[int] = []

    def predict(new: list[int]) -> Tensor:
        tokens.extend(new)
        return subject.uncached(_row(subject, tokens))[0, -1]

    return _generate(predict, prompt, count, sampling)


def next_token(logits: Tensor, sampling: Sampling | None, generator: torch.Generator) -> int:
    """Returns the next token by `logits` [vocab]: the one with the largest, or one drawn by
    `sampling`. Raises Inconclusive for NaN.

    Draws in float64 on the CPU, in the order of the vocabulary: rounding that swaps two nearly
    equal logits does not change the draw.
    """
    if bool(logits.isnan().any()):
        raise Inconclusive("the logits hold NaN, so that no next token can be chosen")
    if sampling is None:
        return int(logits.argmax())
    scores = logits.detach().to("cpu", torch.float64) / sampling.temperature
    kept = scores.topk(sampling.top_k).indices
    probabilities = torch.zeros_like(scores)
    probabilities[kept] = scores[kept].softmax(-1)
    return int(torch.multinomial(probabilities, 1, generator=generator))


@torch.no_grad()
def _generate(
    predict: Predict, prompt: Sequence[int], count: int, sampling: Sampling | None
) -> tuple[int, ...]:
    generator = torch.Generator().manual_seed(sampling.seed if sampling else 0)
    new, chosen = list(prompt), []
    for _ in range(count):
        token = next_token(predict(new), sampling, generator)
        chosen.append(token)
        new = [token]
    return tuple(chosen)


def _row(subject: Subject, tokens: Sequence[int]) -> Tensor:
    return torch.tensor([list(tokens)], dtype=torch.int64, device=device_of(subject))


def _check(subject: Subject, prompt: Sequence[int], count: int, sampling: Sampling | None) -> None:
    vocab_size, max_length = subject.vocab_size, subject.max_length
    if not prompt:
        raise UsageError("a prompt needs at least one token, got none")
    for token in prompt:
        if not 0 <= token < vocab_size:
            raise UsageError(f"prompt token {token} is out of range (vocab_size {vocab_size})")
    if count < 1:
        raise UsageError(f"the number of tokens to generate should be at least 1, got {count}")
    fed = len(prompt) + count - 1  # the last token is chosen but not fed
    if max_length is not None and fed > max_length:
        raise UsageError(
            f"a prompt of {len(prompt)} and {count} more tokens feed {fed}, more than the "
            f"max_length {max_length}"
        )
    if sampling is not None and sampling.top_k > vocab_size:
        raise UsageError(f"top_k {sampling.top_k} is larger than the vocab_size {vocab_size}")
