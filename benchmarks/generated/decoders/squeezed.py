"""One token goes through a branch of its own, without an axis of time."""

import math

import torch
from torch import nn

LONGEST, WIDTH, HEADS = 24, 16, 4
SIZE = WIDTH // HEADS


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.query, self.key = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)
        self.value, self.out = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)

    def project(self, x):
        shape = (*x.shape[:-1], HEADS, SIZE)
        return self.query(x).view(shape), self.key(x).view(shape), self.value(x).view(shape)

    def forward(self, x, past):
        query, key, value = self.project(x)
        seen = 0
        if past is not None:
            seen = past[0].shape[1]
            key = torch.cat([past[0], key], dim=1)
            value = torch.cat([past[1], value], dim=1)
        scores = torch.einsum("bihd,bjhd->bhij", query, key) / math.sqrt(SIZE)
        rows, columns = torch.arange(x.shape[1]) + seen, torch.arange(key.shape[1])
        scores = scores.masked_fill(columns > rows[:, None], -torch.inf)
        mixed = torch.einsum("bhij,bjhd->bihd", scores.softmax(dim=-1), value)
        return self.out(mixed.flatten(2)), (key, value)

    def step(self, x, past):
        query, key, value = self.project(x)
        keys = torch.cat([past[0], key[:, None]], dim=1)
        values = torch.cat([past[1], value[:, None]], dim=1)
        scores = (keys * query[:, None]).sum(dim=-1) / math.sqrt(SIZE)
        weights = scores.softmax(dim=1)
        mixed = (weights[..., None] * values).sum(dim=1)
        return self.out(mixed.flatten(1)), (keys, values)


class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.attention = Attention()
        self.norm1, self.norm2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.mlp = nn.Sequential(nn.Linear(WIDTH, 32), nn.GELU(), nn.Linear(32, WIDTH))

    def forward(self, x, past):
        mixed, past = self.attention(self.norm1(x), past)
        x = x + mixed
        return x + self.mlp(self.norm2(x)), past

    def step(self, x, past):
        mixed, past = self.attention.step(self.norm1(x), past)
        x = x + mixed
        x = x + self.mlp(self.norm2(x))
        return x, past


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.token, self.place = nn.Embedding(33, WIDTH), nn.Embedding(LONGEST, WIDTH)
        self.layers = nn.ModuleList([Layer(), Layer()])
        self.norm = nn.LayerNorm(WIDTH)

    def forward(self, tokens, past=None):
        start = 0 if past is None else past[0][0].shape[1]
        x = self.token(tokens) + self.place(torch.arange(start, start + tokens.shape[1]))
        kept = []
        for number, layer in enumerate(self.layers):
            x, one = layer(x, None if past is None else past[number])
            kept.append(one)
        return self.norm(x) @ self.token.weight.T, kept

    def step(self, token, past):
        position = past[0][0].shape[1]
        x = self.token(token) + self.place.weight[position]
        kept = []
        for number, layer in enumerate(self.layers):
            x, one = layer.step(x, past[number])
            kept.append(one)
        x = self.norm(x)
        return x @ self.token.weight.T, kept


class Decoder:
    vocab_size, max_length = 33, LONGEST

    def __init__(self, seed=0):
        torch.manual_seed(seed)
        self.model = Model().eval()

    def length(self, cache):
        return 0 if cache is None else cache[0][0].shape[1]

    @torch.no_grad()
    def uncached(self, tokens):
        return self.model(tokens)[0]

    def new_cache(self, batch):
        return None

    @torch.no_grad()
    def cached(self, tokens, cache):
        if cache is not None and tokens.shape[1] == 1:
            logits, cache = self.model.step(tokens[:, 0], cache)
            return logits[:, None], cache
        return self.model(tokens, cache)
