"""Arithmetic that both paths of the built-in decoder share.

Nothing here knows positions, masks or storage. Cache bugs hide there, so each path has its own.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from kvfuzz.subjects.zoo.weights import Layer, Norm

EPSILON = 1e-5
ROPE_BASE = 10_000.0
FRAMES = 3
"""The number of states in a side input."""


def normalise(kind: str, norm: Norm, x: Tensor) -> Tensor:
    """Applies LayerNorm or RMSNorm over the last axis of `x` [..., batch, time, width]."""
    if kind == "layernorm" and norm.gain.dim() == 1:
        return F.layer_norm(x, x.shape[-1:], norm.gain, norm.bias, EPSILON)
    if kind == "layernorm":
        return F.layer_norm(x, x.shape[-1:], eps=EPSILON) * norm.gain + norm.bias
    return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + EPSILON) * norm.gain


def looked_up(table: Tensor, index: Tensor) -> Tensor:
    """Returns the rows `index` [...] of `table` [rows, width], or of each of several tables [sets,
    1, rows, width]."""
    return table[index] if table.dim() == 2 else table[:, 0][:, index]


def times(x: Tensor, matrix: Tensor) -> Tensor:
    """Multiplies `x` [batch, time, n] by `matrix` [n, m], or `x` [sets, batch, time, n] by each of
    several matrices [sets, 1, n, m]."""
    if matrix.dim() == 2:
        return x @ matrix
    # A broadcast product would copy each matrix for every row.
    return torch.bmm(x.flatten(1, 2), matrix[:, 0]).view(*x.shape[:3], -1)


def split_heads(x: Tensor, head_dim: int) -> Tensor:
    """Turns [..., batch, time, heads * head_dim] into [..., batch, heads, time, head_dim]."""
    return x.view(*x.shape[:-1], -1, head_dim).transpose(-3, -2)


def rotated(x: Tensor, angles: Tensor) -> Tensor:
    """Rotates each pair (i, i + head_dim/2) of `x` [..., time, head_dim] by `angles`
    [..., time, head_dim/2] (rotary embedding, arXiv 2104.09864)."""
    low, high = x.chunk(2, dim=-1)
    cos, sin = angles.cos(), angles.sin()
    return torch.cat((low * cos - high * sin, low * sin + high * cos), dim=-1)


def rope_frequencies(head_dim: int, like: Tensor) -> Tensor:
    """Returns the rotary angle per position of each pair [head_dim / 2], in radians."""
    exponents = torch.arange(0, head_dim, 2, dtype=like.dtype, device=like.device) / head_dim
    return ROPE_BASE**-exponents


def alibi_slopes(heads: int, like: Tensor) -> Tensor:
    """Returns the penalty per position of distance [heads, 1, 1] (arXiv 2108.12409)."""
    steps = torch.arange(1, heads + 1, dtype=like.dtype, device=like.device)
    return (2.0 ** (-8.0 * steps / heads))[:, None, None]


def side_states(table: Tensor, sides: Tensor) -> Tensor:
    """Returns the side inputs number `sides` [batch]: the embeddings [..., batch, FRAMES, width] of
    FRAMES tokens, by the `table` [tokens, width] of a decoder."""
    frames = torch.arange(FRAMES, device=sides.device)
    return looked_up(table, (sides[:, None] * FRAMES + frames) % table.shape[-2])


def attend(
    query: Tensor, key: Tensor, value: Tensor, visible: Tensor, bias: Tensor | None
) -> Tensor:
    """Softmax attention. `query` [..., heads, n, head_dim], `key` and `value`
    [..., kv_heads, m, head_dim], `visible` bool [n, m] or [batch, 1, n, m], `bias` [heads, n, m]
    or [batch, heads, n, m] or None.
    Returns [..., n, heads * head_dim].

    A hidden key scores the smallest finite number, not -inf. So a position that sees nothing, as
    padding or by a fault, gets a wrong number and not NaN.
    """
    group = query.shape[-3] // key.shape[-3]
    if group > 1:
        key, value = key.repeat_interleave(group, -3), value.repeat_interleave(group, -3)
    scores = query @ key.transpose(-1, -2) * query.shape[-1] ** -0.5  # [..., heads, n, m]
    if bias is not None:
        scores = scores + bias
    scores = scores.masked_fill(~visible, torch.finfo(scores.dtype).min)
    mixed: Tensor = scores.softmax(-1) @ value  # [..., heads, n, head_dim]
    return mixed.transpose(-3, -2).flatten(-2)


def decay(gate: Tensor) -> Tensor:
    """Returns the share of its state that a recurrent layer keeps at each token, [...] in and
    out."""
    return gate.sigmoid()


def gated(query: Tensor, hidden: Tensor, head_dim: int) -> Tensor:
    """Gates the states `hidden` [..., time, kv_heads * head_dim] by `query` [..., time, heads *
    head_dim]. A group of heads reads each state, as with keys and values."""
    group = query.shape[-1] // hidden.shape[-1]
    if group > 1:
        split = hidden.view(*hidden.shape[:-1], -1, head_dim)
        hidden = split.repeat_interleave(group, -2).flatten(-2)
    return F.silu(query) * hidden


def feed_forward(layer: Layer, x: Tensor) -> Tensor:
    """Runs the MLP. [..., time, width] in and out."""
    hidden = F.gelu(times(x, layer.mlp_in) + layer.mlp_in_bias)
    return times(hidden, layer.mlp_out) + layer.mlp_out_bias
