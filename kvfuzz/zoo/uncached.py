"""The uncached path: the complete prefix, one causal mask, no state."""

from __future__ import annotations

import torch
from torch import Tensor

from kvfuzz.sites import Note
from kvfuzz.zoo import maths
from kvfuzz.zoo.config import DecoderConfig
from kvfuzz.zoo.weights import Weights


def logits(config: DecoderConfig, weights: Weights, tokens: Tensor, note: Note) -> Tensor:
    """Logits [batch, time, vocab] for all of `tokens` [batch, time]; `note` sees every state.

    Of several sets of weights (`weights.views`), logits and states have an axis for them in front.
    """
    time = tokens.shape[1]
    everywhere = torch.ones(time, time, dtype=torch.bool, device=tokens.device)
    visible = everywhere.tril()
    if config.window is not None:
        visible = visible & everywhere.triu(1 - config.window)
    index = torch.arange(time, device=tokens.device)
    bias = _alibi(config, index, weights.token)
    x = maths.looked_up(weights.token, tokens)  # [batch, time, width]
    if config.positions == "learned":
        x = x + weights.position[..., :time, :]
    note("position", None, x, index)
    for number, layer in enumerate(weights.layers):
        normed = maths.normalise(config.norm, layer.attention_norm, x)
        note("norm", number, normed)
        query, key, value = (
            maths.split_heads(maths.times(normed, matrix), config.head_dim)
            for matrix in (layer.query, layer.key, layer.value)
        )
        if config.positions == "rope":
            angles = torch.outer(
                index.to(x.dtype), maths.rope_frequencies(config.head_dim, x)
            )  # [time, head_dim / 2]
            query, key = maths.rotated(query, angles), maths.rotated(key, angles)
        note("kv", number, query, key, value)
        note("cache", number, key, value)
        attention = maths.times(maths.attend(query, key, value, visible, bias), layer.out)
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


def _alibi(config: DecoderConfig, index: Tensor, like: Tensor) -> Tensor | None:
    if config.positions != "alibi":
        return None
    distance = (index[:, None] - index[None, :]).to(like.dtype)  # [time, time]
    return -maths.alibi_slopes(config.heads, like) * distance
