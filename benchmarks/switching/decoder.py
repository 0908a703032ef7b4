"""A decoder of one file in plain torch, for a tool that mutates source: two layers, learned
positions and a cache that is concatenated. Both paths are written out, so that most mutants are in
one of them alone."""

import math

import torch

VOCAB, WIDTH, HEADS, LAYERS, LONGEST = 11, 16, 2, 2, 24


def made_weights(seed):
    """The weights of one seed, in float64."""
    generator = torch.Generator().manual_seed(seed)

    def normal(*shape):
        return torch.randn(shape, generator=generator, dtype=torch.float64) / math.sqrt(shape[-1])

    layers = [
        {name: normal(WIDTH, WIDTH) for name in ("query", "key", "value", "out", "up", "down")}
        for _ in range(LAYERS)
    ]
    return {
        "embed": normal(VOCAB, WIDTH) * 4,
        "place": normal(LONGEST, WIDTH) * 4,
        "layers": layers,
    }


def normalised(x):
    """Each position to a mean square of one."""
    return x / torch.sqrt((x * x).mean(-1, keepdim=True) + 1e-6)


def heads_of(x):
    """[batch, time, width] as [batch, heads, time, width / heads]."""
    batch, time, _ = x.shape
    return x.view(batch, time, HEADS, WIDTH // HEADS).transpose(1, 2)


def whole_attention(layer, x):
    """Attention of a whole run, each position to those before it and itself."""
    query, key, value = (heads_of(x @ layer[name]) for name in ("query", "key", "value"))
    scores = query @ key.transpose(-1, -2) / math.sqrt(WIDTH // HEADS)
    time = x.shape[1]
    later = torch.ones(time, time).triu(1).bool()
    weights = torch.softmax(scores.masked_fill(later, -math.inf), -1)
    return (weights @ value).transpose(1, 2).reshape(x.shape) @ layer["out"]


def cached_attention(layer, x, stored):
    """Attention of new positions to what is stored and to themselves; returns what to store."""
    query, key, value = (heads_of(x @ layer[name]) for name in ("query", "key", "value"))
    if stored is not None:
        key = torch.cat([stored[0], key], 2)
        value = torch.cat([stored[1], value], 2)
    old = key.shape[2] - x.shape[1]
    at = torch.arange(old, old + x.shape[1])
    later = torch.arange(key.shape[2])[None, :] > at[:, None]
    scores = query @ key.transpose(-1, -2) / math.sqrt(WIDTH // HEADS)
    weights = torch.softmax(scores.masked_fill(later, -math.inf), -1)
    return (weights @ value).transpose(1, 2).reshape(x.shape) @ layer["out"], (key, value)


def mlp(layer, x):
    """A gated feed-forward part."""
    return torch.tanh(x @ layer["up"]) @ layer["down"]


def whole(weights, tokens):
    """Logits [batch, time, vocab] of a whole run."""
    x = weights["embed"][tokens] + weights["place"][: tokens.shape[1]]
    for layer in weights["layers"]:
        x = x + whole_attention(layer, normalised(x))
        x = x + mlp(layer, normalised(x))
    return normalised(x) @ weights["embed"].T


def cached(weights, tokens, cache):
    """Logits of new tokens, and the cache with them."""
    start = cache[0]
    x = weights["embed"][tokens] + weights["place"][start : start + tokens.shape[1]]
    entries = []
    for number, layer in enumerate(weights["layers"]):
        stored = cache[1][number] if start > 0 else None
        attention, entry = cached_attention(layer, normalised(x), stored)
        entries.append(entry)
        x = x + attention
        x = x + mlp(layer, normalised(x))
    return normalised(x) @ weights["embed"].T, (start + tokens.shape[1], entries)
