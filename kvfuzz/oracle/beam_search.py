"""Searches with the uncached path, to learn whether a search with a cache could go wrong.

On random weights logits are so peaked that the beams of a search never change places. A search that
forgets to reorder its cache then gives the right tokens. So the weights that touch the vocabulary
are made smaller, which makes the logits flatter, and the same search is run with its cached texts
left in place: only where that gives other tokens could the mistake have been seen.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor

from kvfuzz.subjects.float64 import Twin, weights_of
from kvfuzz.subjects.run import Rows, run_uncached


@dataclass(frozen=True)
class Search:
    """The `tokens` [batch, length] of the best of `beams` for each row; the `gap`, the least
    distance in log probability between a beam that was chosen and the best that was not; and
    whether beams `crossed`, so that a cache had to be reordered."""

    tokens: Tensor
    beams: int
    gap: float
    crossed: bool


Fault = Literal["never reordered its cache", "lost its cache"]


def search(
    subject: Any, prompt: Rows, length: int, beams: int, fault: Fault | None = None
) -> Search:
    """Continues each row of `prompt` [batch, n] by the `length` tokens of greatest probability,
    with `beams` beams.

    With a `fault` each call after the first reads what a wrong cache would hold: the text of the
    beam whose place a beam takes, or other tokens before the last.
    """
    held = [list(row) for row in prompt for _ in range(beams)]
    chosen: list[list[int]] = [[] for _ in held]
    scores = torch.full((len(prompt), beams), -math.inf, dtype=torch.float64)
    scores[:, 0] = 0.0
    gap, crossed = math.inf, False
    for step in range(length):
        read = held
        if fault == "lost its cache" and step:
            read = [[*change_tokens(text[:-1], subject.vocab_size), text[-1]] for text in held]
        logits = run_uncached(subject, read)[:, -1].double().log_softmax(-1).cpu()
        totals = (scores.reshape(-1, 1) + logits).reshape(len(prompt), -1)
        best = totals.topk(beams + 1)
        # The first of the last beams is the answer, so there the order of the beams counts.
        rivals = best.values[:, : 2 if step == length - 1 else None]
        gap = min(gap, float((rivals[:, -2] - rivals[:, -1]).min()))
        scores, places = best.values[:, :beams], best.indices[:, :beams]
        source = places // logits.shape[-1]
        crossed |= 0 < step < length - 1 and bool((source != torch.arange(beams)).any())
        first = beams * torch.arange(len(prompt))[:, None]
        taken = (first + source).flatten().tolist()
        tokens = (places % logits.shape[-1]).flatten().tolist()
        chosen = [[*chosen[one], token] for one, token in zip(taken, tokens, strict=True)]
        stay = fault == "never reordered its cache" and step > 0
        texts = held if stay else [held[one] for one in taken]
        held = [[*text, token] for text, token in zip(texts, tokens, strict=True)]
    return Search(torch.tensor(chosen[::beams]), beams, gap, crossed)


def change_tokens(row: Sequence[int], vocab_size: int, by: int = 1) -> tuple[int, ...]:
    """Returns other tokens, one for each of `row`."""
    return tuple((token + by) % vocab_size for token in row)


def spread(subject: Any, prompt: Rows) -> float:
    """Returns the standard deviation of the last logits of `prompt`, the median over its rows."""
    logits = run_uncached(subject, prompt)[:, -1].double()
    return float(logits.masked_fill(~logits.isfinite(), 0.0).std(-1).median())


@contextmanager
def flattened(subject: Any, factor: float, prompt: Rows) -> Iterator[bool]:
    """Inside the context the weights that make logits are multiplied by `factor`: the one to which
    the logits of `prompt` are proportional, or else all that have an axis of the size of the
    vocabulary. Yields whether there are any; they are bit for bit what they were afterwards."""
    own = getattr(subject, "twin", None)
    twin = own if isinstance(own, Twin) and own.always else None
    found = weights_of(subject) if twin is None else twin.weights
    weights = [weight for weight in found if subject.vocab_size in weight.shape]
    # The weights of a Float64Subject are float64 only while its twin runs.
    with nullcontext() if twin is None else twin.running(promoting=False), torch.no_grad():
        if len(weights) > 1 and factor != 1:
            weights = _heads_among(weights, subject, prompt) or weights
        with _multiplied(weights, factor):
            yield bool(weights)


def _heads_among(weights: Sequence[Tensor], subject: Any, prompt: Rows) -> list[Tensor]:
    """Returns the first of `weights` to which logits are proportional, in a list; none if there is
    none, as where the head is the embedding or has a bias."""
    logits = run_uncached(subject, prompt)
    for weight in reversed(weights):  # a head is mostly made last
        with _multiplied([weight], 2.0):
            twice = run_uncached(subject, prompt)
        if torch.allclose(twice, 2 * logits):
            return [weight]
    return []


@contextmanager
def _multiplied(weights: Sequence[Tensor], factor: float) -> Iterator[None]:
    saved = [weight.detach().clone() for weight in weights]
    try:
        for weight in weights:
            weight.mul_(factor)
        yield
    finally:
        for weight, value in zip(weights, saved, strict=True):
            weight.copy_(value)
