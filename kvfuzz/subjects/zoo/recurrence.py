"""The state of a recurrent layer, one token at a time.

A short causal convolution over the values, then h <- decay * h + (1 - decay) * convolved. Padding
leaves the state as it is. The states after the last few slots are kept, so that a small crop can
roll back; a larger crop is refused, unless it drops everything.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from kvfuzz.subjects.zoo import maths
from kvfuzz.subjects.zoo.config import DecoderConfig
from kvfuzz.subjects.zoo.weights import KERNEL

ROLLBACK = 3
"""The number of slots that can be rolled back."""


@dataclass(frozen=True, slots=True)
class State:
    """The memory of a recurrent layer after a slot."""

    recent: Tensor  # [batch, KERNEL - 1, features]: the values that the convolution still needs
    hidden: Tensor  # [batch, features]


def initial_state(
    config: DecoderConfig, batch: int, dtype: torch.dtype, device: torch.device
) -> State:
    """Returns the state before the first token."""
    features = config.kv_heads * config.head_dim
    return State(
        torch.zeros(batch, KERNEL - 1, features, dtype=dtype, device=device),
        torch.zeros(batch, features, dtype=dtype, device=device),
    )


def step(state: State, gate: Tensor, value: Tensor, kernel: Tensor, text: Tensor | None) -> State:
    """Returns the state after one more slot: `gate` and `value` [batch, features], `kernel`
    [KERNEL, features]. Rows where `text` [batch] is False keep their state."""
    read = torch.cat((state.recent, value[:, None]), dim=1)  # [batch, KERNEL, features]
    decay = maths.decay(gate)
    hidden = decay * state.hidden + (1 - decay) * (read * kernel).sum(1)
    recent = read[:, 1:]
    if text is not None:
        recent = torch.where(text[:, None, None], recent, state.recent)
        hidden = torch.where(text[:, None], hidden, state.hidden)
    return State(recent, hidden)


def steps(
    history: list[State], gate: Tensor, value: Tensor, kernel: Tensor, text: Tensor | None
) -> tuple[Tensor, list[State]]:
    """Returns the hidden states after each of n more slots [batch, n, features], and the `history`
    afterwards, the newest last, ROLLBACK slots back. Arguments are those of `step`, with an axis
    for time: [batch, n, ...]."""
    states = list(history)
    for t in range(value.shape[1]):
        present = None if text is None else text[:, t]
        states.append(step(states[-1], gate[:, t], value[:, t], kernel, present))
    hidden = torch.stack([state.hidden for state in states[len(history) :]], dim=1)
    return hidden, states[-1 - ROLLBACK :]


def croppable(history: list[State], count: int) -> bool:
    """Whether the state before the last `count` slots is still there; true if no layer recurs."""
    return not history or count < len(history)


def crop(history: list[State], count: int) -> list[State]:
    """Returns `history` as it was before the last `count` slots."""
    return history[: len(history) - count]


def join(history: list[State], other: list[State]) -> list[State]:
    """Returns the states of both, the rows of `other` after those of `history`, as far back as both
    go."""
    count = min(len(history), len(other))
    pairs = zip(history[len(history) - count :], other[len(other) - count :], strict=True)
    return [
        State(torch.cat((a.recent, b.recent)), torch.cat((a.hidden, b.hidden))) for a, b in pairs
    ]


def reorder(history: list[State], rows: Tensor) -> list[State]:
    """Makes row i of every state the old row `rows[i]`."""
    return [State(state.recent[rows], state.hidden[rows]) for state in history]


def copy(history: list[State]) -> list[State]:
    """Returns the same states in tensors of their own."""
    return [State(state.recent.clone(), state.hidden.clone()) for state in history]


def reset(history: list[State]) -> list[State]:
    """Returns the state before the first token, for as many rows."""
    first = history[:1]
    return [State(torch.zeros_like(s.recent), torch.zeros_like(s.hidden)) for s in first]
