"""Trains the checkpoint that `kvfuzz audit` recreates: it learns four patterns of four tokens.

Training uses the uncached path alone, in float64, so that the rounding under audit has no part in
it; the result is rounded to float32. One build of torch always reaches the same bits. Builds whose
kernels group sums in another order end at other weights, since the updates amplify rounding; the
loss bound holds for each, and the margin below the audit's boundary is measured over seeds and
kernels (docs/audit.md).

Each update is taken at weights jittered by a few per cent. Without jitter, normalising over four
features makes this width ill-conditioned: a checkpoint that fits the corpus as well turns the
rounding of float32 into errors of up to 5e-5.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import cycle, islice

import torch
import torch.nn.functional as F
from torch import Tensor

from kvfuzz.errors import InvalidSubject
from kvfuzz.subjects.trace import ignore_note
from kvfuzz.subjects.zoo import uncached
from kvfuzz.subjects.zoo.config import DecoderConfig
from kvfuzz.subjects.zoo.decoder import Decoder
from kvfuzz.subjects.zoo.weights import Parameters, draw_parameters

# Six of the eight tokens have more than one successor: 0 is followed by 1 or by 2, 1 by 2, 5 or 7,
# and so on. So the next token depends on the history, which the cache holds.
PATTERNS = ((0, 1, 2, 3), (4, 1, 5, 6), (0, 2, 5, 7), (4, 2, 1, 7))
CONFIG = DecoderConfig(vocab_size=8, max_length=12)

# The first token leaves two equally likely successors, which costs ln 2 nats on one prediction of
# each row and cannot be learned away. The training must come within twice that.
LEAST_LOSS = math.log(2) / CONFIG.max_length
MAX_LOSS = 2 * LEAST_LOSS


@dataclass(frozen=True, slots=True)
class Recipe:
    """How the checkpoint is trained: Adam with decoupled weight decay and a cosine schedule.

    `jitter` is the relative standard deviation of the noise on every weight at every update;
    `smoothing` the share of each target that is spread over the vocabulary, which keeps the
    logits, and with them their rounding, small.
    """

    seed: int = 0
    updates: int = 1200
    rate: float = 0.04
    decay: float = 0.05
    jitter: float = 0.08
    smoothing: float = 0.02
    momentum: float = 0.9
    second_momentum: float = 0.99
    epsilon: float = 1e-8


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """The trained decoder, and the corpus loss in nats per token that its training ended with."""

    decoder: Decoder
    loss: float
    recipe: Recipe


def train(recipe: Recipe | None = None, max_loss: float = MAX_LOSS) -> Checkpoint:
    """Trains the checkpoint. The same recipe gives the same weights, whatever the global random
    state, default dtype and thread count, all of which stay as they were.

    Raises InvalidSubject if the loss stays above `max_loss`.
    """
    recipe = recipe or Recipe()
    with one_thread(), torch.inference_mode(False), torch.enable_grad():
        flat = _trained(
            draw_parameters(CONFIG, recipe.seed, torch.float64, "cpu").flat.detach(), recipe
        )
        parameters = Parameters(CONFIG, flat.to(torch.float32))
        parameters.requires_grad_(False)
        loss = float(_loss(parameters, _corpus()))
    if not loss <= max_loss:
        raise InvalidSubject(
            f"training with seed {recipe.seed} ended at a loss of {loss:.4f} nats per token, above "
            f"the bound {max_loss:.4f}: this checkpoint has not learned its corpus"
        )
    return Checkpoint(Decoder(CONFIG, parameters=parameters), loss, recipe)


@contextmanager
def one_thread() -> Iterator[None]:
    """Inside, torch uses one thread, since their number changes the order of sums."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _trained(flat: Tensor, recipe: Recipe) -> Tensor:
    """Returns `flat` after the recipe's updates. Adam is written out, four lines on a flat tensor,
    so that no release can change its defaults."""
    corpus = _corpus()
    generator = torch.Generator().manual_seed(recipe.seed)
    mean, square = torch.zeros_like(flat), torch.zeros_like(flat)
    for update in range(1, recipe.updates + 1):
        noise = torch.randn(flat.shape, generator=generator, dtype=flat.dtype)
        gradient = _gradient(flat, 1 + recipe.jitter * noise, corpus, recipe.smoothing)
        mean = torch.lerp(gradient, mean, recipe.momentum)
        square = torch.lerp(gradient.square(), square, recipe.second_momentum)
        mean_now = mean / (1 - recipe.momentum**update)
        square_now = square / (1 - recipe.second_momentum**update)
        rate = recipe.rate * (1 + math.cos(math.pi * update / recipe.updates)) / 2
        step = mean_now / (square_now.sqrt() + recipe.epsilon)
        flat = flat * (1 - rate * recipe.decay) - rate * step
    return flat


def _gradient(flat: Tensor, jitter: Tensor, corpus: Tensor, smoothing: float) -> Tensor:
    """Returns the gradient of the smoothed loss with respect to `flat`, at `flat * jitter`."""
    parameters = Parameters(CONFIG, flat * jitter)
    (gradient,) = torch.autograd.grad(_loss(parameters, corpus, smoothing), [parameters.flat])
    return gradient * jitter


def _loss(parameters: Parameters, corpus: Tensor, smoothing: float = 0.0) -> Tensor:
    """Returns the nats per predicted token of `corpus` [patterns, max_length + 1]."""
    logits = uncached.logits(CONFIG, parameters.weights(), corpus[:, :-1], ignore_note)
    return F.cross_entropy(logits.flatten(0, 1), corpus[:, 1:].flatten(), label_smoothing=smoothing)


def _corpus() -> Tensor:
    """Repeats each pattern until every position has a next token [patterns, max_length + 1]."""
    rows = [list(islice(cycle(pattern), CONFIG.max_length + 1)) for pattern in PATTERNS]
    return torch.tensor(rows, dtype=torch.int64)
