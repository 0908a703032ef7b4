"""The uncached path of the built-in decoder: the whole prefix at once, no state."""

from __future__ import annotations

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from kvfuzz.subjects.trace import Note
from kvfuzz.subjects.zoo import maths
from kvfuzz.subjects.zoo.config import DecoderConfig
from kvfuzz.subjects.zoo.weights import KERNEL, Layer, Weights

Pair = tuple[Tensor, Tensor]


class Geometry(NamedTuple):
    """Masks and numbers that depend on positions alone: `visible` positions within each window,
    bool [time, time]; the penalty for distance [heads, time, time]; and the rotary angles
    [time, head_dim / 2]."""

    visible: dict[int | None, Tensor]
    bias: Tensor | None
    angles: Tensor | None


def logits(
    config: DecoderConfig,
    weights: Weights,
    tokens: Tensor,
    note: Note,
    sides: Tensor | None = None,
) -> Tensor:
    """Returns logits [batch, time, vocab] for all of `tokens` [batch, time]; `note` gets every
    state. `sides` [batch] are the numbers of the side inputs, by default 0.

    With several sets of weights (`weights.views`), logits and states have an axis for them in
    front.
    """
    time = tokens.shape[1]
    index = torch.arange(time, device=tokens.device)
    x = maths.looked_up(weights.token, tokens)  # [batch, time, width]
    if config.positions == "learned":
        x = x + weights.position[..., :time, :]
    note("position", None, x, index)
    geometry = _geometry(config, index, weights.token)
    pair: Pair | None = None
    for number, layer in enumerate(weights.layers):
        normed = maths.normalise(config.norm, layer.attention_norm, x)
        note("norm", number, normed)
        if config.recurs(number):
            mixed = _recurrent(config, number, layer, normed, note)
        elif config.crosses(number):
            given_sides = torch.zeros_like(tokens[:, 0]) if sides is None else sides
            states = maths.side_states(weights.token, given_sides)
            mixed = _cross(config, number, layer, normed, states, note)
        else:
            # A layer that shares takes the keys and values of the layer before it.
            given = pair if config.source(number) != number else None
            mixed, pair = _attention(config, number, layer, normed, geometry, given, note)
        attention = maths.times(mixed, layer.out)
        note("attention", number, attention)
        x = x + attention
        note("residual", number, x)
        normed = maths.normalise(config.norm, layer.mlp_norm, x)
        note("mlp_norm", number, normed)
        hidden = maths.feed_forward(layer, normed)
        note("mlp", number, hidden)
        x = x + hidden
        note("mlp_residual", number, x)
    x = maths.normalise(config.norm, weights.final_norm, x)
    note("final_norm", None, x)
    answer = maths.times(x, weights.token.mT)
    note("logits", None, answer)
    return answer


def _geometry(config: DecoderConfig, index: Tensor, like: Tensor) -> Geometry:
    """Returns the geometry of the positions `index` [time]."""
    everywhere = torch.ones(len(index), len(index), dtype=torch.bool, device=index.device)
    causal = everywhere.tril()
    visible = {
        window: causal if window is None else causal & everywhere.triu(1 - window)
        for window in {config.at(layer).window for layer in range(config.layers)}
    }
    bias = angles = None
    if config.positions == "alibi":
        distance = (index[:, None] - index[None, :]).to(like.dtype)
        bias = -maths.alibi_slopes(config.heads, like) * distance
    if config.positions == "rope":
        frequencies = maths.rope_frequencies(config.head_dim, like)
        angles = torch.outer(index.to(like.dtype), frequencies)
    return Geometry(visible, bias, angles)


def _attention(
    config: DecoderConfig,
    number: int,
    layer: Layer,
    normed: Tensor,
    geometry: Geometry,
    given: Pair | None,
    note: Note,
) -> tuple[Tensor, Pair]:
    """Returns what each position reads from those before it [..., time, heads * head_dim], and the
    keys and values that it read: those `given`, or the layer's own."""
    matrices = (layer.query,) if given else (layer.query, layer.key, layer.value)
    new = [maths.split_heads(maths.times(normed, matrix), config.head_dim) for matrix in matrices]
    if geometry.angles is not None:
        new[:2] = [maths.rotated(x, geometry.angles) for x in new[:2]]  # query and key
    note("kv", number, *new)
    key, value = given or (new[1], new[2])
    note("cache", number, key, value)
    visible = geometry.visible[config.at(number).window]
    return maths.attend(new[0], key, value, visible, geometry.bias), (key, value)


def _cross(
    config: DecoderConfig, number: int, layer: Layer, normed: Tensor, states: Tensor, note: Note
) -> Tensor:
    """Returns what each position reads from the `states` [..., batch, frames, width] of its side
    input [..., time, heads * head_dim]."""
    query = maths.split_heads(maths.times(normed, layer.query), config.head_dim)
    note("kv", number, query)
    key, value = (
        maths.split_heads(maths.times(states, matrix), config.head_dim)
        for matrix in (layer.key, layer.value)
    )
    seen = torch.ones(query.shape[-2], key.shape[-2], dtype=torch.bool, device=normed.device)
    return maths.attend(query, key, value, seen, None)


def _recurrent(
    config: DecoderConfig, number: int, layer: Layer, normed: Tensor, note: Note
) -> Tensor:
    """Computes the recurrence in closed form [..., time, heads * head_dim]: the state at a position
    is the sum of the inputs up to it, each times the decays since then."""
    assert layer.convolution is not None
    query, gate, value = (maths.times(normed, m) for m in (layer.query, layer.key, layer.value))
    note("kv", number, query, gate, value)
    time = value.shape[-2]
    convolved = torch.zeros_like(value)
    for ago in range(KERNEL):
        shifted = F.pad(value, (0, 0, ago, 0))[..., :time, :]
        convolved = convolved + shifted * layer.convolution[..., KERNEL - 1 - ago, None, :]
    put_in = (1 - maths.decay(gate)) * convolved
    everywhere = torch.ones(time, time, dtype=torch.bool, device=normed.device)
    later, from_then_on = everywhere.tril(-1)[..., None], everywhere.tril()[..., None]
    # Sums of log-decays, from after an input (columns) up to a position (rows):
    # [..., time, time, features].
    logs = F.logsigmoid(gate)[..., :, None, :].masked_fill(~later, 0.0).cumsum(-3)
    shares = logs.exp() * from_then_on
    hidden = (shares * put_in[..., None, :, :]).sum(-2)
    return maths.gated(query, hidden, config.head_dim)
