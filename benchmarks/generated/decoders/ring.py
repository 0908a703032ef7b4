"""A window of keys in a ring that is written by `position % window`, and learned positions."""

import torch
from torch import nn

LONGEST, WIDTH, HEADS, WINDOW = 24, 16, 4, 4
SIZE = WIDTH // HEADS


def split_heads(x):
    return x.view(x.shape[0], x.shape[1], HEADS, SIZE).transpose(1, 2)


class WindowedAttention(nn.Module):
    def __init__(self):
        super().__init__()
        self.qkv = nn.Linear(WIDTH, 3 * WIDTH)
        self.proj = nn.Linear(WIDTH, WIDTH)

    def attend(self, query, key, value, allowed):
        scores = query @ key.transpose(-1, -2)
        scores = scores * SIZE**-0.5
        scores = scores.masked_fill(~allowed, float("-inf"))
        weights = scores.softmax(dim=-1)
        return weights @ value

    def forward(self, x, ring, start):
        query, key, value = self.qkv(x).chunk(3, dim=-1)
        query, key, value = split_heads(query), split_heads(key), split_heads(value)
        time = x.shape[1]
        if ring is None:
            index = torch.arange(time)
            far = index[:, None] - index[None, :]
            allowed = (far >= 0) & (far < WINDOW)
            mixed = self.attend(query, key, value, allowed)
        else:
            parts = []
            for at in range(time):
                slot = (start + at) % WINDOW
                ring.keys[:, :, slot] = key[:, :, at]
                ring.values[:, :, slot] = value[:, :, at]
                filled = min(start + at + 1, WINDOW)
                allowed = torch.arange(WINDOW) < filled
                part = self.attend(query[:, :, at : at + 1], ring.keys, ring.values, allowed)
                parts.append(part)
            mixed = torch.cat(parts, dim=2)
        mixed = mixed.transpose(1, 2).flatten(2)
        return self.proj(mixed)


class Ring:
    def __init__(self, batch):
        self.keys = torch.zeros(batch, HEADS, WINDOW, SIZE)
        self.values = torch.zeros(batch, HEADS, WINDOW, SIZE)

    def to(self, dtype):
        self.keys, self.values = self.keys.to(dtype), self.values.to(dtype)
        return self


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.ln1, self.ln2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.attn = WindowedAttention()
        self.up, self.down = nn.Linear(WIDTH, 32), nn.Linear(32, WIDTH)

    def forward(self, x, ring, start):
        x = x + self.attn(self.ln1(x), ring, start)
        inner = torch.relu(self.up(self.ln2(x)))
        return x + self.down(inner)


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.wte, self.wpe = nn.Embedding(37, WIDTH), nn.Embedding(LONGEST, WIDTH)
        self.blocks = nn.ModuleList([Block(), Block()])
        self.ln_f = nn.LayerNorm(WIDTH)
        self.lm_head = nn.Linear(WIDTH, 37, bias=False)

    def forward(self, tokens, rings=None, start=0):
        positions = torch.arange(start, start + tokens.shape[1])
        x = self.wte(tokens) + self.wpe(positions)
        for number, block in enumerate(self.blocks):
            ring = None if rings is None else rings[number].to(x.dtype)
            x = block(x, ring, start)
        return self.lm_head(self.ln_f(x))


class Decoder:
    vocab_size, max_length = 37, LONGEST

    def __init__(self, seed=0):
        torch.manual_seed(seed)
        self.model = Model().eval()

    def length(self, cache):
        return cache["seen"]

    @torch.no_grad()
    def uncached(self, tokens):
        return self.model(tokens)

    def new_cache(self, batch):
        return {"rings": [Ring(batch), Ring(batch)], "seen": 0}

    @torch.no_grad()
    def cached(self, tokens, cache):
        logits = self.model(tokens, cache["rings"], cache["seen"])
        cache["seen"] += tokens.shape[1]
        return logits, cache
