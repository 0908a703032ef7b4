"""The cached path: each token, or chunk, once.

Every stage is a function of this module, called through the module, so that a mutant can replace
one stage and a reader can follow the path from top to bottom. Positions, masks and storage are
this path's own; it shares only weights and arithmetic with the uncached path.
"""

from __future__ import annotations

import torch
from torch import Tensor

from kvfuzz.sites import Note
from kvfuzz.zoo import maths
from kvfuzz.zoo.cache import Cache
from kvfuzz.zoo.config import DecoderConfig
from kvfuzz.zoo.weights import Weights


def logits(
    config: DecoderConfig, weights: Weights, tokens: Tensor, cache: Cache, note: Note
) -> Tensor:
    """Logits [batch, n, vocab] for the new `tokens` [batch, n]; `cache` grows by n positions."""
    index = position_index(config, cache, tokens)
    x = embed(config, weights, tokens, index)
    note("position", None, x, index)
    for layer in range(config.layers):
        x = block(config, weights, layer, x, index, cache, note)
    x = final_norm(config, weights, x)
    note("final_norm", None, x)
    answer = readout(weights, x)
    note("logits", None, answer)
    advance(cache, tokens.shape[1])
    return answer


def block(
    config: DecoderConfig,
    weights: Weights,
    layer: int,
    x: Tensor,
    index: Tensor,
    cache: Cache,
    note: Note,
) -> Tensor:
    """One layer: attention over the cache, then the MLP. [batch, n, width] both ways."""
    normed = attention_norm(config, weights, layer, x)
    note("norm", layer, normed)
    query, key, value = project(config, weights, layer, normed, index)
    note("kv", layer, query, key, value)
    store(cache, layer, key, value)
    keys, values = fetch(cache, layer)
    note("cache", layer, keys, values)
    attention = attend(config, weights, layer, query, keys, values, index)
    note("attention", layer, attention)
    x = attention_residual(x, attention)
    note("residual", layer, x)
    normed = mlp_norm(config, weights, layer, x)
    note("mlp_norm", layer, normed)
    hidden = mlp(weights, layer, normed)
    note("mlp", layer, hidden)
    x = mlp_residual(x, hidden)
    note("mlp_residual", layer, x)
    return x


def position_index(config: DecoderConfig, cache: Cache, tokens: Tensor) -> Tensor:  # noqa: ARG001
    """The absolute positions [n] of the new `tokens` [batch, n]; below `config.max_length`."""
    return torch.arange(cache.length, cache.length + tokens.shape[1], device=tokens.device)


def embed(config: DecoderConfig, weights: Weights, tokens: Tensor, index: Tensor) -> Tensor:
    """The token + position record [batch, n, width]."""
    x = weights.token[tokens]
    return x + weights.position[index] if config.positions == "learned" else x


def attention_norm(config: DecoderConfig, weights: Weights, layer: int, x: Tensor) -> Tensor:
    """The normalised record [batch, n, width] that query, key and value are made from."""
    return maths.normalise(config.norm, weights.layers[layer].attention_norm, x)


def project(
    config: DecoderConfig, weights: Weights, layer: int, normed: Tensor, index: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Query [batch, heads, n, head_dim], and key and value [batch, kv_heads, n, head_dim]."""
    matrices = weights.layers[layer]
    query = maths.split_heads(normed @ matrices.query, config.head_dim)
    key = maths.split_heads(normed @ matrices.key, config.head_dim)
    value = maths.split_heads(normed @ matrices.value, config.head_dim)
    if config.positions == "rope":
        angles = rope_angles(config, index, normed)
        query, key = maths.rotated(query, angles), maths.rotated(key, angles)
    return query, key, value


def rope_angles(config: DecoderConfig, index: Tensor, like: Tensor) -> Tensor:
    """The turn of each pair at each new position [n, head_dim / 2], in radians."""
    return index.to(like.dtype)[:, None] * maths.rope_frequencies(config.head_dim, like)


def store(cache: Cache, layer: int, key: Tensor, value: Tensor) -> None:
    """Append the new key and value [batch, kv_heads, n, head_dim] to the cache of `layer`."""
    cache.keys[layer] = torch.cat((cache.keys[layer], key), dim=2)
    cache.values[layer] = torch.cat((cache.values[layer], value), dim=2)


def fetch(cache: Cache, layer: int) -> tuple[Tensor, Tensor]:
    """All keys and values of `layer` so far [batch, kv_heads, length, head_dim]."""
    return cache.keys[layer], cache.values[layer]


def attend(
    config: DecoderConfig,
    weights: Weights,
    layer: int,
    query: Tensor,
    keys: Tensor,
    values: Tensor,
    index: Tensor,
) -> Tensor:
    """What the new positions take from the cache [batch, n, width]."""
    slots = torch.arange(keys.shape[2], device=index.device)
    bias = None
    if config.positions == "alibi":
        bias = alibi_bias(config, index, slots, query)
    mixed = maths.attend(query, keys, values, visible(config, index, slots), bias)
    return mixed @ weights.layers[layer].out


def visible(config: DecoderConfig, index: Tensor, slots: Tensor) -> Tensor:
    """Which slot of the cache [m] each new position [n] may see: bool [n, m]."""
    distance = index[:, None] - slots[None, :]
    seen = distance >= 0
    return seen if config.window is None else seen & (distance < config.window)


def alibi_bias(config: DecoderConfig, index: Tensor, slots: Tensor, like: Tensor) -> Tensor:
    """The penalty of each new position [n] for each slot [m]: [heads, n, m]."""
    distance = (index[:, None] - slots[None, :]).to(like.dtype)
    return -maths.alibi_slopes(config.heads, like) * distance


def attention_residual(x: Tensor, attention: Tensor) -> Tensor:
    """The residual stream after attention [batch, n, width]."""
    return x + attention


def mlp_norm(config: DecoderConfig, weights: Weights, layer: int, x: Tensor) -> Tensor:
    """The normalised record [batch, n, width] that the MLP reads."""
    return maths.normalise(config.norm, weights.layers[layer].mlp_norm, x)


def mlp(weights: Weights, layer: int, normed: Tensor) -> Tensor:
    """The MLP's output [batch, n, width]."""
    return maths.feed_forward(weights.layers[layer], normed)


def mlp_residual(x: Tensor, hidden: Tensor) -> Tensor:
    """The residual stream after the MLP [batch, n, width]."""
    return x + hidden


def final_norm(config: DecoderConfig, weights: Weights, x: Tensor) -> Tensor:
    """The normalised record [batch, n, width] that the readout reads."""
    return maths.normalise(config.norm, weights.final_norm, x)


def readout(weights: Weights, x: Tensor) -> Tensor:
    """Logits [batch, n, vocab], by the tied embedding."""
    return x @ weights.token.T


def advance(cache: Cache, count: int) -> None:
    """Count `count` more tokens as seen."""
    cache.length += count
